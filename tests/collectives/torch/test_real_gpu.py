"""The backend cxl with tensors of a real GPU, where there is one; elsewhere tests use a fake one, in gpu.py."""

import importlib.util

import pytest

from tests.helpers.torch_ranks import torch_ranks

HERE = "tests.collectives.torch.real_gpu"
SHM = {"CXLEMU_CARD_BYTES": "8MiB", "CXLEMU_BACKEND": "shm", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.fixture(autouse=True)
def gpu() -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install cxlemu[torch]")
    import torch

    if torch.cuda.device_count() == 0:  # asks no driver for a context, which a fork would lose
        pytest.skip("there is no GPU")


@pytest.mark.deep
def test_tensors_of_a_gpu_have_the_bits_of_those_of_the_cpu() -> None:
    for of_rank in torch_ranks(f"{HERE}:bits", ranks=2, **SHM):
        assert "died" not in of_rank, of_rank["died"]
        assert of_rank["differ"] == [] and of_rank["same"] > 800 and of_rank["message"]


@pytest.mark.deep
def test_calls_come_after_what_the_stream_has_and_before_what_comes_later() -> None:
    assert torch_ranks(f"{HERE}:order", ranks=2, **SHM) == [[[3.0], [21.0], [201.0], [402.0]]] * 2


@pytest.mark.deep
def test_ddp_on_a_gpu_has_gloos_losses_and_fsdp_nearly() -> None:
    for of_rank in torch_ranks(f"{HERE}:trains", ranks=2, **SHM):
        assert "died" not in of_rank, of_rank["died"]
        assert of_rank["cxl"] == of_rank["gloo"]
        assert of_rank["fsdp"] == pytest.approx(of_rank["gloo"], rel=1e-4)
