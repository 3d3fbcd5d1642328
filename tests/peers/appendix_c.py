"""The Toeplitz matrix of Appendix C of the paper, in numpy."""

import numpy as np


def create_toeplitz_matrix(w: np.ndarray) -> np.ndarray:
    """
    Repeat the padded weights n times, cut the result into rows that are one shorter than a repetition, so that each row
    is shifted by one against the row above, and keep the middle columns.

    Args:
        w: [2n - 1], with n of at least 2: the paper's last slice is empty for n = 1.

    Returns:
        [n, n]
    """
    n = (w.shape[0] + 1) // 2
    r = w.shape[0] // 2
    t = np.pad(w, (0, n))
    t = np.tile(t, n)
    t = t[:-n]
    t = np.reshape(t, (n, n + w.shape[0] - 1))
    return t[:, r:-r]
