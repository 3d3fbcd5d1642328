"""Speed and memory of hf_gmlp beside its peers: `python -m benchmarks.cpu --help` and others."""
