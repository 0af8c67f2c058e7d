"""Everything that knows Hydra: its modules, its internals, its grammar, its switches and the wording of its errors.

An import contract keeps Hydra out of the rest of the package, so a new release of Hydra is looked at here alone.
OmegaConf, whose public interface is stable, may be used in all of ``config``.
"""
