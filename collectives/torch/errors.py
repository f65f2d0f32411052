"""What a group's calls raise: torch's errors, with the rank and the call."""

from __future__ import annotations

from torch.distributed import DistBackendError

from cxlemu.errors import CxlemuError, DeadlineError, InputError, PeerLostError


def as_torch(error: CxlemuError, rank: int, call: str) -> Exception:
    """Return torch's error for an error of a call: ValueError for arguments, else DistBackendError (" Timed out ")."""
    if isinstance(error, InputError):
        return ValueError(f"cxl: {call} on rank {rank}: {error}")
    gone = isinstance(error, PeerLostError) and "no sign of life" not in str(error)
    silent = isinstance(error, DeadlineError) and not gone
    how = "Timed out waiting: " if silent else ""
    failed: Exception = DistBackendError(f"cxl: rank {rank} in {call}: {how}{error}")
    return failed
