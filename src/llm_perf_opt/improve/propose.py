"""One remedy, proposed by a program: overrides, or a function that patches the model; the result is its trial.

>>> from llm_perf_opt.api import try_remedy                                            # doctest: +SKIP
>>> try_remedy(["model.cache=preallocated"], baseline=["model=llama_tiny"]).decision   # doctest: +SKIP
'drop'
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.core.errors import ConfigError, LlmPerfError
from llm_perf_opt.improve import configurations
from llm_perf_opt.improve.experiment import Outcome, read_outcome, run_experiment, with_processes
from llm_perf_opt.improve.judge import conclude
from llm_perf_opt.improve.measuring import Spec, new_folder
from llm_perf_opt.improve.plan import refuse_few_pairs
from llm_perf_opt.improve.worker import describe_failure, run_both_sides
from llm_perf_opt.process.environment import missing_variables
from llm_perf_opt.remedies.data import Effect, Metric, SearchSettings, Trial

Patch = Callable[[Any], Any]


def try_remedy(
    overrides: Sequence[str] = (),
    *,
    patch: Patch | str | None = None,
    baseline: Sequence[str] = (),
    metric: Metric = "total",
    effect: Effect = "rounding",
    limit_s: float = 120.0,
    answer_s: float | None = None,
    error_ratio: float = 0.05,
    least_gain_ratio: float = 0.02,
    most_blocks: int = 80,
    most_samples: int = 4,
    processes: int = 3,
    seed: int = 20240229,
    out: Path | str | None = None,
) -> Trial:
    """Measure a proposal against the baseline and compare its answers; return verdict, interval, output check and decision.

    ``patch`` gets B's model once it is built and changes it in place, or returns another one: ``package.module:function``, or the
    function itself. One that another process can import is measured there, so that its crash is a failed trial; any other
    (a lambda, one of a notebook) in this process. ``limit_s`` is the time for measuring; the time of an answer of a slow model
    (``answer_s``) adds to the time for warming up. ``out`` keeps the files of the experiment. Nothing raises because the remedy
    is bad: ``decision`` is then ``failed``, with the reason. An invalid baseline raises :class:`ConfigError`.
    """
    if not overrides and patch is None:
        raise ConfigError("nothing to try", hint="give overrides, or a function that patches the model")
    configurations.refuse_run_directory([*baseline, *overrides])
    settings = SearchSettings(
        family_error_ratio=error_ratio,
        tests=1,
        least_gain_ratio=least_gain_ratio,
        most_blocks=most_blocks,
        seed=seed,
        most_samples=most_samples,
        processes=processes,
    )
    refuse_few_pairs(settings, settings.tests)
    first = configurations.checked(baseline)
    trial = Trial(
        remedy=_name(patch) or " ".join(overrides),
        overrides=list(overrides),
        finding=None,
        predicted_gain_s=None,
        measured=None,
        output="failed",
        decision="failed",
        reason="",
        title="proposed",
        effect=effect,
        patch=patch is not None,
    )
    try:
        second = configurations.checked(configurations.merged(baseline, overrides))
    except LlmPerfError as error:
        trial.reason = error.message
        return trial
    refused = configurations.other_work(first, second, effect)
    if refused is not None:
        trial.reason = f"refused: {refused}"
        return trial
    spec = Spec(
        a=list(baseline),
        b=configurations.merged(baseline, overrides),
        metric=metric,
        settings=settings,
        alpha=error_ratio,
        limit_s=limit_s,
        answer_s=answer_s,
        patch=_importable(patch),
        environment={"a": dict(first.run.env), "b": dict(second.run.env)},
    )
    own = configurations.needs_own_process(first, second)
    if _only_here(patch, spec) and (own or missing_variables(first.run.env)):
        trial.reason = (
            "a function that no other process can import cannot be tried with settings of a process (run.env, run.affinity, "
            "run.interop_threads): put it into a module and give 'package.module:function'"
        )
        return trial
    with tempfile.TemporaryDirectory(prefix="llm-perf-opt-try-") as scratch:
        folder = Path(out).expanduser().absolute() if out is not None else Path(scratch) / "trial"
        new_folder(folder)
        try:
            outcome = _measure(spec, folder, patch, own_processes=own)
        except (LlmPerfError, OSError) as error:
            trial.reason = ": ".join(describe_failure(error))
            return trial
    return conclude(trial, outcome, metric, settings)


def _only_here(patch: Patch | str | None, spec: Spec) -> bool:
    """Return whether the function that patches is known to this process alone."""
    return patch is not None and spec.patch is None


def _measure(spec: Spec, folder: Path, patch: Patch | str | None, *, own_processes: bool) -> Outcome:
    if isinstance(patch, str) or patch is None or spec.patch is not None:
        return run_experiment(spec, folder, own_processes=own_processes)
    spec.save(folder)
    began = time.monotonic()
    failure = None
    try:
        run_both_sides(spec, folder, patch)
    except LlmPerfError as error:
        failure = error.message
    except Exception as error:  # noqa: BLE001 - user code may raise anything; the failed trial records it
        failure = ": ".join(describe_failure(error))
    outcome = read_outcome(spec, folder)
    outcome.failure, outcome.seconds = failure, time.monotonic() - began
    if outcome.measured is not None and outcome.measured.verdict == "gain":
        # There is no other process that knows the function: the assumed spread of processes widens the interval.
        outcome.measured = with_processes(outcome.measured, [], spec)
    return outcome


def _importable(patch: Patch | str | None) -> str | None:
    """Return the importable name of the function; ``None``: it has none."""
    if patch is None or isinstance(patch, str):
        return patch
    module, name = getattr(patch, "__module__", "__main__"), getattr(patch, "__qualname__", "<lambda>")
    if module == "__main__" or "<" in name or getattr(sys.modules.get(module), name, None) is not patch:
        return None
    return f"{module}:{name}"


def _name(patch: Patch | str | None) -> str | None:
    return patch if isinstance(patch, str) or patch is None else getattr(patch, "__qualname__", "patch")
