"""The result of `grouped_masked`."""


def grouped_masked(A, B, counts, C):
    """C, of every group the first rows new: those of A, times its matrix of B."""
    result = C.copy()
    for e, count in enumerate(counts.astype(int)):
        result[e, :count] = A[e, :count] @ B[e]
    return result
