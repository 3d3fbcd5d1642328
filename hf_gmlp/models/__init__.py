"""The code in saved checkpoints: files that need only torch and transformers."""
