"""A checked graph gone through for its memory; for the commands ``plan`` and ``run --dry-run``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cascade_train.jobs.memory import Plan


def planned(found: Any, host: Any, guess: bool = True) -> tuple[list[Any], Plan]:
    """What each node would do, and what it needs of memory.

    ``guess``: go on where only running can tell which pictures there are.
    """
    from cascade_train.data.spec import Dataset
    from cascade_train.graph.run.plan import dry_run
    from cascade_train.jobs.memory import new_plan

    # beside the answer, which a machine may read
    plan = new_plan(host, lambda text: print(text, file=sys.stderr, flush=True))

    def seen(node: Any, inputs: Any, sources: Any) -> None:
        if node.will != "fails":
            plan.add(node.node_id, node.title, node.class_type, inputs, sources)

    # what pictures a dataset has changes no memory, their sizes are those of its buckets
    return dry_run(found, seen, {"CASCADE_DATASET": Dataset(())} if guess else None), plan
