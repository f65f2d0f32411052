"""One rank of `torch_world`: begins a process group, calls a function of a test's file, and keeps what it returns.

FILE FUNCTION FOLDER ARGUMENTS (as JSON)
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch.distributed as dist


def main(file: str, function: str, folder: str, arguments: str) -> None:
    """Run the function on this rank."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(Path(file).parent))
    spec.loader.exec_module(module)
    dist.init_process_group("cxl")
    rank = dist.get_rank()
    result = getattr(module, function)(*json.loads(arguments))
    try:
        text = json.dumps(result)
    except TypeError as error:
        raise TypeError(f"{function}: results pass through JSON: {error}; return x.tolist() of a tensor") from None
    Path(folder, f"result-{rank}.json").write_text(text)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
