import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The scripts of paper/ import each other, and the demo's text, by name.
sys.path[:0] = [str(ROOT / "paper"), str(ROOT / "examples")]
