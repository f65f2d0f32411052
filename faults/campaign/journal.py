"""The journal of a campaign: each line behind the first one is a case that was judged."""

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from faults.campaign.judge import Judgement
from faults.journal import JournalFile

_JUDGEMENT = {field.name for field in fields(Judgement)}


class Journal(JournalFile):
    def __init__(self, path: Path, campaign: Mapping[str, Any]) -> None:
        super().__init__(path, "campaign", campaign, _is_case)


def _is_case(record: Mapping[str, Any]) -> bool:
    """Whether a record is that of a judged case: its id, a whole judgement, and how many seconds it took."""
    if record.keys() != {"case", "judgement", "seconds"}:
        return False
    judgement, seconds = record["judgement"], record["seconds"]
    texts = [record["case"], *judgement.values()] if isinstance(judgement, dict) else []
    whole = isinstance(judgement, dict) and judgement.keys() == _JUDGEMENT and all(isinstance(t, str) for t in texts)
    return whole and type(seconds) in (int, float) and math.isfinite(seconds) and seconds >= 0
