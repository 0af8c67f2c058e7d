"""Several profiling runs as one result: profile, rerun, export each; summarise results and gaps."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_perf_opt.core import units
from llm_perf_opt.core.console.progress import Progress, Task
from llm_perf_opt.core.errors import ConfigError
from llm_perf_opt.core.escape import csv_text
from llm_perf_opt.core.files import atomic_write_text
from llm_perf_opt.core.stage import StageResult
from llm_perf_opt.stages.ncu.diagnose import NcuFault
from llm_perf_opt.stages.ncu.plan import NcuPlan
from llm_perf_opt.stages.ncu.probe import NcuCapabilities
from llm_perf_opt.stages.ncu.run import REPORT, NcuRequest, NcuRunResult, export_pages, run_ncu
from llm_perf_opt.stages.ncu.targets import Target, missing_targets
from llm_perf_opt.stages.workload import replay_lines


class ProfileSet:
    """The profiling runs of one stage run: collects artifacts, exit codes and faults."""

    def __init__(
        self,
        *,
        capabilities: NcuCapabilities,
        folder: Path,
        progress: Progress,
        plans: Sequence[NcuPlan],
        export_csv: bool = True,
    ) -> None:
        self._capabilities, self._folder, self._progress = capabilities, folder, progress
        self._plans, self._export_csv = plans, export_csv
        self._result = StageResult("ok")
        self._remarks = list(dict.fromkeys(warning for plan in plans for warning in plan.warnings))
        self._faults: list[tuple[str, NcuFault]] = []
        self._fix: list[str] = []
        self._unreadable = 0
        """Runs whose report nothing here can read."""
        self._commands: list[str] = []
        self._write_targets()
        notes = dict.fromkeys(note for plan in plans for note in plan.notes)
        for note in notes:  # remarks are in the reason of the result, which is shown once
            progress.say(f"ncu: {note}")

    def add(self, plan: NcuPlan, request: NcuRequest) -> None:
        """Profile one phase, once more without the kernel filter if nothing matched, then export."""
        self._progress.say(f"ncu: {plan.cost}")
        profiled = self._profile(request, "cmd.txt")
        rerun = bool(profiled.fault and profiled.fault.kind == "no-kernels" and request.kernel_regex)
        if rerun:
            self._say(plan, "no kernel matched the filter, so ncu ran again without it")
            profiled = self._profile(request.without_filter(), "cmd-rerun.txt")
        if profiled.report is not None:
            self._result.artifacts.insert(0, profiled.report)
            self._export(plan, profiled.report, readable=profiled.kernels is not None)
            self._missing(plan, profiled, rerun=rerun)
        if profiled.fault is not None:
            self._faults.append((plan.phase, profiled.fault))

    def _say(self, plan: NcuPlan, remark: str) -> None:
        self._remarks.append(f"{plan.phase}: {remark}" if plan.phase else remark)

    def _profile(self, request: NcuRequest, record: str) -> NcuRunResult:
        command = replay_lines(request.command(), cwd=request.workload.cwd, env=request.workload.added_env)
        self._write_command(request.folder / record, [command])
        if request.folder != self._folder:
            self._commands.append(command)
            self._write_command(self._folder / "cmd.txt", self._commands)
        part = f" ({request.folder.name})" if request.folder != self._folder else ""
        with self._progress.task(f"ncu: profiling{part}") as task:
            profiled = run_ncu(request, on_line=_follow_lines(task), on_tick=lambda _elapsed: task.advance(0))
        process = profiled.process
        self._result.exit_codes[request.name] = process.returncode
        logs = (request.log_file, process.stdout_path, process.stderr_path)
        self._result.artifacts += [log for log in logs if log is not None and log.is_file()]
        if profiled.passes:
            total, many = sum(profiled.passes), len(profiled.passes)
            launches = "1 launch" if many == 1 else f"{many} launches"
            self._progress.say(
                f"{request.name}: {launches} profiled in {total} {'pass' if total == 1 else 'passes'}, "
                f"{units.seconds(process.seconds)} with loading"
            )
        return profiled

    def _write_command(self, path: Path, commands: list[str]) -> None:
        header = f"# Nsight Compute {self._capabilities.version_text}. Run again with: sh {path.name}"
        atomic_write_text(path, "\n\n".join([header, *commands]) + "\n")
        if path not in self._result.artifacts:
            self._result.artifacts.append(path)

    def _export(self, plan: NcuPlan, report: Path, *, readable: bool) -> None:
        """Export the pages; ``readable``: the report itself can be read, too (the ``ncu`` extra)."""
        if not self._export_csv:
            return
        files, codes, problems = export_pages(
            self._capabilities,
            report,
            plan.export_sections,
            folder=report.parent,
            log_dir=report.parent / "logs",
        )
        self._result.artifacts += files
        prefix = f"{plan.phase} " if plan.phase else ""
        self._result.exit_codes.update({f"{prefix}{name}": code for name, code in codes.items()})
        if problems:
            self._unreadable += not files and not readable
            self._say(plan, f"pages that could not be exported: {'; '.join(problems)}")
            self._fix.append(f"export by hand: ncu --import {report} --csv --page raw --print-units base")

    def _missing(self, plan: NcuPlan, profiled: NcuRunResult, *, rerun: bool) -> None:
        if profiled.kernels is None or not plan.targets or rerun:
            return
        missing = missing_targets([target.name for target in plan.targets], profiled.kernels)
        if missing:
            self._say(
                plan,
                f"{len(missing)} of {len(plan.targets)} target kernels were not profiled "
                f"(first: {missing[0][:120]})",
            )
            self._fix.append("raise pipeline.ncu.ncu_cli.launch_count, or widen the NVTX range")

    def result(self) -> StageResult:
        """Return the overall result: failed if every run failed, degraded if a phase is incomplete."""
        faults = [f"{phase}: {fault.message}" if phase else fault.message for phase, fault in self._faults]
        self._remarks[:0] = faults
        self._fix[:0] = [fault.fix for _, fault in self._faults]
        statuses = [fault.status for _, fault in self._faults]
        lost = sum(one == "failed" for one in statuses) + self._unreadable
        if lost and lost >= len(self._plans):
            self._result.status = "failed"
        elif self._remarks:
            self._result.status = "degraded"
        self._result.reason = "; ".join(self._remarks) or None
        self._result.fix = "; ".join(dict.fromkeys(self._fix)) or None
        return self._result

    def _write_targets(self) -> None:
        targets = [target for plan in self._plans for target in plan.targets]
        if targets:
            path = atomic_write_text(self._folder / "targets.csv", targets_table(targets))
            self._result.artifacts.append(path)


def remove_earlier(folder: Path, *, force: bool) -> None:
    """Remove files of an earlier run, including other phases: an old report must not be taken for a new one."""
    names = (REPORT, "cmd-rerun.txt", "raw.csv", "details.csv", "section_*.csv")
    earlier = [path for name in names for path in folder.rglob(name)]
    reports = [path for path in earlier if path.name == REPORT]
    if reports and not force:
        raise ConfigError(
            f"{reports[0]} exists and pipeline.ncu.ncu_cli.force_overwrite is false",
            hint="set it to true, or choose another artifacts.runs_dir",
            key="pipeline.ncu.ncu_cli.force_overwrite",
        )
    for path in earlier:
        path.unlink(missing_ok=True)


def plan_folder(root: Path, plan: NcuPlan) -> Path:
    """Return the folder of one run: that of the stage, or that of its phase."""
    return root / re.sub(r"[^A-Za-z0-9_-]+", "_", plan.phase) if plan.phase else root


def targets_table(targets: list[Target]) -> str:
    """Return the targets as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["rank", "share_ratio", "launches", "phases", "name"])
    for rank, target in enumerate(targets, start=1):
        phases = " ".join(target.phases)
        writer.writerow([rank, f"{target.share_ratio:.6f}", target.launches, phases, csv_text(target.name)])
    return out.getvalue()


def _follow_lines(task: Task) -> Callable[[str], None]:
    """Show progress by counting profiled launches; program output goes to the log."""
    launches = 0

    def show(line: str) -> None:
        nonlocal launches
        if line.startswith("==PROF== Profiling"):
            launches += 1
            name = line.removeprefix("==PROF== Profiling").strip().strip('"').partition('"')[0]
            task.advance(0, note=f"{launches} launches, last: {name[:60]}")

    return show
