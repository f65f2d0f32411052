"""What others measured on real switches and networks, beside the model, with no config changed."""
