"""What a saved checkpoint carries: flat files that need only torch and transformers.

Text and images: configuration_gmlp.py, spatial_gating.py, modeling_gmlp.py and heads.py. What the paper compares with:
configuration_baselines.py, modeling_baselines.py and the same heads.py.
"""
