"""Training scripts under test: ``cxlemu torchrun``. The command imports no PyTorch; the ranks that it starts do."""
