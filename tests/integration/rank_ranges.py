"""A rank with ranges: three steps that meet in a collective, which rank 1 is late for."""

from __future__ import annotations

import time


def main() -> None:
    """Run as one rank of a group."""
    from llm_perf_opt.core.ranks import this_rank
    from llm_perf_opt.workloads.engine.nvtx import mark, stage
    from llm_perf_opt.workloads.rank_group import enter_group, leave_group

    rank = this_rank()
    assert rank is not None
    mark(rank.mark)
    enter_group(rank, "cpu", 60.0)
    import torch
    import torch.distributed as dist

    for _ in range(3):
        with stage("decode"):
            if rank.rank == 1:
                with stage("dawdling"):
                    time.sleep(0.02)
            dist.all_reduce(torch.ones(4))
    leave_group()


if __name__ == "__main__":
    main()
