"""gemm for numba-cuda: family block, float32, layout nn.

template: gemm/numba-cuda/block.py.j2, digest 7b5c50a9d6367053
configuration: {"pad": 1, "sk": 64, "sm": 64, "sn": 16, "tx": 4, "ty": 4}
launch: grid (ceildiv(M, 64) * ceildiv(K, 64), 1, 1), block (16, 16, 1), no dynamic shared memory
"""

from numba import cuda, float32, uint32

# Element type.
REAL = float32

# What the kernel takes when it is compiled ahead: sizes, alpha, A and B, each with its leading
# dimension in elements, beta, and C with its own. Sizes and thread numbers are unsigned, which
# spares every index the sign that Python's // and % ask for.
SIGNATURE = (
    "void(uint32, uint32, uint32, float32, CPointer(float32), uint32, "
    "CPointer(float32), uint32, float32, CPointer(float32), uint32)"
)

# Rows of C, columns of C and reduction steps that a thread block stages.
SM = 64
SK = 64
SN = 16

# Rows and columns of C that a thread accumulates.
TY = 4
TX = 4

# Threads of a block along the rows and the columns of C. A thread's rows are THREADS_M apart, its
# columns THREADS_K: neighbours read neighbouring elements of shared memory.
THREADS_M = SM // TY
THREADS_K = SK // TX
THREADS = THREADS_M * THREADS_K

# Elements of each tile that a thread stages.
A_LOADS = (SM * SN + THREADS - 1) // THREADS
B_LOADS = (SN * SK + THREADS - 1) // THREADS

# Elements from step to step of A's tile, which is transposed on its way into shared memory.
A_LD = SM + 1


# The compiler may give a thread as many registers as a block of THREADS leaves it.
@cuda.jit(launch_bounds=THREADS)
def gemm(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
    """C[m x k] = alpha * A[m x n] @ B[n x k] + beta * C, by rows ld elements apart."""
    a_tile = cuda.shared.array((SN, A_LD), REAL)
    b_tile = cuda.shared.array((SN, SK), REAL)
    acc = cuda.local.array((TY, TX), REAL)
    a_frag = cuda.local.array(TY, REAL)
    b_frag = cuda.local.array(TX, REAL)

    thread_m = uint32(cuda.threadIdx.y)
    thread_k = uint32(cuda.threadIdx.x)
    thread = thread_m * THREADS_K + thread_k
    block = uint32(cuda.blockIdx.x)
    blocks_across = (k + SK - 1) // SK
    first_row = block // blocks_across * SM
    first_column = block % blocks_across * SK

    for i in range(TY):
        for j in range(TX):
            acc[i, j] = 0
    for begin in range(0, n, SN):
        for load in range(A_LOADS):
            place = thread + load * THREADS
            if place < SM * SN:
                step = place % SN
                row = place // SN
                inside = first_row + row < m and begin + step < n
                element = (first_row + row) * lda + begin + step
                a_tile[step, row] = a[element] if inside else REAL(0)
        for load in range(B_LOADS):
            place = thread + load * THREADS
            if place < SN * SK:
                step = place // SK
                column = place % SK
                inside = begin + step < n and first_column + column < k
                element = (begin + step) * ldb + first_column + column
                b_tile[step, column] = b[element] if inside else REAL(0)
        cuda.syncthreads()
        for step in range(SN):
            for i in range(TY):
                a_frag[i] = a_tile[step, thread_m + i * THREADS_M]
            for j in range(TX):
                b_frag[j] = b_tile[step, thread_k + j * THREADS_K]
            for i in range(TY):
                for j in range(TX):
                    acc[i, j] += a_frag[i] * b_frag[j]
        cuda.syncthreads()

    for i in range(TY):
        row = first_row + thread_m + i * THREADS_M
        for j in range(TX):
            column = first_column + thread_k + j * THREADS_K
            if row < m and column < k:
                value = alpha * acc[i, j]
                if beta != 0:
                    value += beta * c[row * ldc + column]
                c[row * ldc + column] = value
