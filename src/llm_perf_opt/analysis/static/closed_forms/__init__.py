"""FLOPs, parameters and cache sizes by formula, one module per architecture family.

They stand in where a model cannot be counted, and check the counter where it can. Both must agree to the
last FLOP; a difference is reported, never averaged.
"""

from llm_perf_opt.analysis.static.closed_forms.families import ClosedForm, closed_form_of

__all__ = ["ClosedForm", "closed_form_of"]
