"""`scripts/faults`: play seeds, print what they came to, fail when anything is wrong."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from faults.plan import plan_of
from faults.world import Outcome, play

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Play seeds; return 0 when all is well with every one of them."""
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many; default 20")
    parser.add_argument("--first", type=int, default=0, help="the first one; default 0")
    parser.add_argument("--seed", type=int, help="only this one; its directory is kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        options.first, options.seeds = options.seed, 1
    outcomes = []
    started = time.monotonic()
    for seed in range(options.first, options.first + options.seeds):
        outcomes.append(_play(seed, is_kept=options.seed is not None))
        if options.json is not None:  # after each: a long run that is broken off has its results
            options.json.write_text(json.dumps(_report(outcomes), indent=1) + "\n")
    failed = [outcome.seed for outcome in outcomes if outcome.problems]
    print(
        f"{len(outcomes)} seeds, {sum(each.runs for each in outcomes)} runs, "
        f"{sum(each.responses for each in outcomes)} responses, "
        f"{sum(len(each.struck) for each in outcomes)} faults, "
        f"{sum(len(each.losses) for each in outcomes)} runs begun anew, "
        f"{time.monotonic() - started:.0f} s: "
        + (f"FAILED, seeds {failed}" if failed else "all is well")
    )
    return 1 if failed else 0


def _play(seed: int, *, is_kept: bool) -> Outcome:
    plan = plan_of(seed)
    directory = Path(tempfile.mkdtemp(prefix=f"turnwire-faults-{seed}-"))
    outcome = asyncio.run(play(plan, directory))
    verdict = "FAILED" if outcome.problems else "ok"
    print(f"seed {seed}: {verdict} ({plan}); struck: {', '.join(outcome.struck) or 'none'}")
    for problem in outcome.problems:
        print(f"  {problem}")
    if outcome.problems and outcome.losses:
        print(f"  begun anew after: {dict(Counter(outcome.losses))}")
    if outcome.problems or is_kept:
        print(f"  replay: scripts/faults --seed {seed}; its directory: {directory}")
    else:
        shutil.rmtree(directory)
    sys.stdout.flush()
    return outcome


def _report(outcomes: Sequence[Outcome]) -> dict[str, object]:
    struck = Counter(name.partition("@")[0] for each in outcomes for name in each.struck)
    losses = Counter(loss for each in outcomes for loss in each.losses)
    records: Counter[str] = Counter()
    for each in outcomes:
        records.update(each.records)
    return {
        "meta": {"python": platform.python_version(), "machine": platform.machine()},
        "totals": {
            "seeds": len(outcomes),
            "failed": [each.seed for each in outcomes if each.problems],
            "runs": sum(each.runs for each in outcomes),
            "responses": sum(each.responses for each in outcomes),
            "struck": dict(sorted(struck.items())),
            "begun_anew": dict(sorted(losses.items())),
            "records": dict(sorted(records.items())),
        },
        "seeds": [asdict(each) for each in outcomes],
    }


if __name__ == "__main__":
    sys.exit(main())
