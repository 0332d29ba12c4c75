"""TensorRT: loading it, building engines, keeping them, running them for one shape at a time."""
