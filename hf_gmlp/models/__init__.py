"""What saved checkpoints contain: flat files that need only torch and transformers."""
