"""`examples/backup.py` as it is, but that its first step waits at a gate (crashkit.Gate) in `BACKUP_GATE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from jobs import hold

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples"))
import backup as real

_make_plan = real.make_plan


def make_plan(*args: Any) -> real.Plan:
    """Plan, once the gate is open."""
    hold(os.environ["BACKUP_GATE"])
    return _make_plan(*args)


real.make_plan = make_plan
backup = real.backup
