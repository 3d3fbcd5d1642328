"""Speed and memory of hf_gmlp compared with its peers: `python -m benchmarks.cpu --help` and others."""
