"""What a group's calls raise: torch's errors, with the rank and the call."""

from __future__ import annotations

from torch.distributed import DistBackendError

from cxlemu.errors import CxlemuError, DeadlineError, InputError, PeerLostError


def as_torch(error: CxlemuError, rank: int, call: str) -> Exception:
    """Make of an error of a call what torch's users expect.

    Args:
        error: What the communicator raised.
        rank: This rank in the group.
        call: The call, in words.

    Returns:
        ValueError for arguments that do not fit; otherwise a DistBackendError, in which a wait that ended at its
        deadline says " Timed out ", as torch's own backends do.
    """
    if isinstance(error, InputError):
        return ValueError(f"cxl: {call} on rank {rank}: {error}")
    gone = isinstance(error, PeerLostError) and "no sign of life" not in str(error)
    silent = isinstance(error, DeadlineError) and not gone
    how = "Timed out waiting: " if silent else ""
    failed: Exception = DistBackendError(f"cxl: rank {rank} in {call}: {how}{error}")
    return failed
