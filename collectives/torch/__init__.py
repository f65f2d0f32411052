"""PyTorch over the pool: ``torch.distributed.init_process_group("cxl")``.

Where torch loads backends by entry points, nothing has to be imported for that; elsewhere ``import collectives.torch``
registers the backend.

    options = Options(backend="emulated", seed=7)                    # or the variables CXLEMU_*
    dist.init_process_group("cxl", pg_options=options)
    dist.all_reduce(tensor)
"""

import gc
from typing import TYPE_CHECKING, Any

from cxlemu.lazy import imported_when_asked_for

if TYPE_CHECKING:
    from collectives.torch.options import Options
    from collectives.torch.process_group import communicator_of, make_group

__all__ = ["Options", "communicator_of", "make_group", "register"]

__getattr__ = imported_when_asked_for(__name__, options=["Options"], process_group=["communicator_of", "make_group"])


def register() -> None:
    """Register the backend with torch, once. Does nothing in a torch that was built without torch.distributed.

    Raises:
        ImportError: PyTorch is missing: ``pip install cxlemu[torch]``.
    """
    try:
        import torch.distributed as dist
    except ImportError as error:
        raise ImportError("the backend needs PyTorch: pip install 'cxlemu[torch]'") from error
    if dist.is_available() and "CXL" not in dist.Backend._plugins:
        dist.Backend.register_backend("cxl", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, backend_options: Any) -> Any:
    """Make a process group, when torch asks for it; the rest is imported only now, for ``import torch``'s sake.

    Meanwhile Python does not search torch's objects for garbage, which would take a quarter of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        from collectives.torch.process_group import create
    finally:
        if collects:
            gc.enable()
    return create(options, backend_options)


register()
