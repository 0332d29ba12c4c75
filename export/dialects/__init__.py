"""One module for each backend that spells the decoder."""
