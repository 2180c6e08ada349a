"""The examples of Kernel Tuner's documentation, as kernels of `autotune.kernel` on a GPU.

Each is the source with its macros, and what Kernel Tuner calls tune_params, restrictions, answer
and grid_div_x. Kernel Tuner's arguments, and what they are here:

    kernel_name, kernel_source    name=, source= (a text, or a path; quoted headers come along);
                                  a function for Numba is decorated
    problem_size, arguments       the operands of a call; operands= and out= name them, with shapes
    arguments that are scalars    sizes follow from shapes; scalars= are others, np.int32(3) too
    tune_params                   parameters=, macros of the source
    restrictions                  restrictions=: texts, lambdas of a dictionary or of names
    block_size_x and its like     block=: any expressions
    grid_div_x, grid_div_y        grid=["ceildiv(N, block_size_x)"]
    answer, atol, verify          reference= (or the answer, with inputs= its operands),
                                  tolerance=, accept=
    compiler_options              compiler_options=, in which {NAME} is a parameter
    prepared arguments            inputs= makes them; kernel.tune(a, b) takes those of a call
    smem_args                     shared_bytes=
    cmem_args, texmem_args        not offered: pass a pointer
    several kernels               launch={"workspace_bytes": ..., "before": [...], "after": [...]}
    strategy, strategy_options    sampler=: auto, tpe, gp, random, exhaustive, or Optuna's by path
    max_fevals, time_limit        trials=, timeout=
    objective, metrics            objective="energy"; GFLOP/s by flops=
    observers                     recorded beside every measurement: clocks, temperature, power
    cache, simulation_mode        the user's cache; `autotune replay` of recorded spaces
    store_results (T4)            `autotune sweep`, `autotune cache export`
    kernel_launcher               the kernel itself is called; `autotune export` for C and C++
    tune_kernel                   kernel.tune, the first call, `autotune tune module:kernel`
"""

import numpy as np

import autotune

vector_add = autotune.kernel(
    source="""
    __global__ void vector_add(const T* a, const T* b, T* c, int n) {
      int i = blockIdx.x * block_size_x + threadIdx.x;
      if (i < n) c[i] = a[i] + b[i];
    }
    """,
    operands={"a": "N", "b": "N"},
    out={"c": "N"},
    reference="a + b",
    parameters={"block_size_x": [64, 128, 256, 512, 1024]},
    grid=["ceildiv(N, block_size_x)"],
    block=["block_size_x"],
)


def convolved(image, weights):
    """The weighted sums of all windows."""
    windows = np.lib.stride_tricks.sliding_window_view(image, weights.shape)
    return np.einsum("yxij,ij->yx", windows, weights)


convolution = autotune.kernel(
    source="""
    // Every thread computes tile_size_x x tile_size_y results from an image in shared memory.
    #define COLUMNS (block_size_x * tile_size_x)
    #define ROWS (block_size_y * tile_size_y)
    __global__ void convolution(const T* image, const T* weights, T* result, int h, int w) {
      __shared__ T part[ROWS + filter - 1][COLUMNS + filter - 1];
      int width = w + filter - 1, height = h + filter - 1;
      int x0 = blockIdx.x * COLUMNS, y0 = blockIdx.y * ROWS;
      for (int y = threadIdx.y; y < ROWS + filter - 1; y += block_size_y)
        for (int x = threadIdx.x; x < COLUMNS + filter - 1; x += block_size_x)
          part[y][x] = y0 + y < height && x0 + x < width
              ? image[(long long)(y0 + y) * width + x0 + x] : T(0);
      __syncthreads();
      #pragma unroll
      for (int ty = 0; ty < tile_size_y; ++ty)
        #pragma unroll
        for (int tx = 0; tx < tile_size_x; ++tx) {
          int y = threadIdx.y + ty * block_size_y, x = threadIdx.x + tx * block_size_x;
          T sum = 0;
          for (int i = 0; i < filter; ++i)
            for (int j = 0; j < filter; ++j)
              sum += part[y + i][x + j] * weights[i * filter + j];
          if (y0 + y < h && x0 + x < w) result[(long long)(y0 + y) * w + x0 + x] = sum;
        }
    }
    """,
    operands={"image": ("H + F - 1", "W + F - 1"), "weights": "FxF"},
    out={"result": "HxW"},
    reference=convolved,
    flops="2 * H * W * F * F",
    parameters={
        "block_size_x": [16, 32, 64],
        "block_size_y": [1, 2, 4, 8],
        "tile_size_x": [1, 2, 4],
        "tile_size_y": [1, 2, 4],
        "filter": [3, 5, 17],
    },
    restrictions=[
        lambda block_size_x, block_size_y: 32 <= block_size_x * block_size_y <= 1024,
        "filter == F",  # known when it is compiled
        "itemsize * (block_size_x * tile_size_x + F) * (block_size_y * tile_size_y + F) <= 49152",
    ],
    grid=["ceildiv(W, block_size_x * tile_size_x)", "ceildiv(H, block_size_y * tile_size_y)"],
    block=["block_size_x", "block_size_y"],
    cases=["37x3x53", "64x5x64", "70x17x33", "1x3x1"],  # H x F x W
)

matmul = autotune.kernel(
    source="""
    // Tiles of A and B in shared memory; a thread computes tile_size_y x tile_size_x elements.
    #define WIDTH (block_size_x * tile_size_x)
    #define HEIGHT (block_size_y * tile_size_y)
    __global__ void matmul(const T* A, const T* B, T* C, int m, int n, int k) {
      __shared__ T a[HEIGHT][block_size_x], b[block_size_x][WIDTH];
      T sums[tile_size_y][tile_size_x] = {};
      int row0 = blockIdx.y * HEIGHT, column0 = blockIdx.x * WIDTH;
      for (int step = 0; step < n; step += block_size_x) {
        for (int y = threadIdx.y; y < HEIGHT; y += block_size_y)
          a[y][threadIdx.x] = row0 + y < m && step + threadIdx.x < n
              ? A[(long long)(row0 + y) * n + step + threadIdx.x] : T(0);
        for (int y = threadIdx.y; y < block_size_x; y += block_size_y)
          for (int x = threadIdx.x; x < WIDTH; x += block_size_x)
            b[y][x] = step + y < n && column0 + x < k
                ? B[(long long)(step + y) * k + column0 + x] : T(0);
        __syncthreads();
        for (int p = 0; p < block_size_x; ++p)
          #pragma unroll
          for (int i = 0; i < tile_size_y; ++i)
            #pragma unroll
            for (int j = 0; j < tile_size_x; ++j)
              sums[i][j] +=
                  a[threadIdx.y + i * block_size_y][p] * b[p][threadIdx.x + j * block_size_x];
        __syncthreads();
      }
      for (int i = 0; i < tile_size_y; ++i)
        for (int j = 0; j < tile_size_x; ++j) {
          int y = row0 + threadIdx.y + i * block_size_y;
          int x = column0 + threadIdx.x + j * block_size_x;
          if (y < m && x < k) C[(long long)y * k + x] = sums[i][j];
        }
    }
    """,
    operands={"A": "MxN", "B": "NxK"},
    out={"C": "MxK"},
    reference="A @ B",
    flops="2 * M * N * K",
    parameters={
        "block_size_x": [16, 32],
        "block_size_y": [4, 8, 16, 32],
        "tile_size_x": [1, 2, 4],
        "tile_size_y": [1, 2, 4, 8],
    },
    restrictions=lambda p: (
        p["block_size_x"] * p["block_size_y"] >= 64
        and p["block_size_y"] * p["tile_size_y"] <= 128
        and 8
        * p["block_size_x"]
        * (p["block_size_y"] * p["tile_size_y"] + p["block_size_x"] * p["tile_size_x"])
        <= 49152
    ),
    grid=["ceildiv(K, block_size_x * tile_size_x)", "ceildiv(M, block_size_y * tile_size_y)"],
    block=["block_size_x", "block_size_y"],
)

reduction = autotune.kernel(
    source="""
    // Blocks sum what is theirs into the workspace; one block sums that.
    __device__ T summed(T sum) {
      __shared__ T part[block_size_x];
      part[threadIdx.x] = sum;
      __syncthreads();
      for (int half = block_size_x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
      }
      return part[0];
    }
    __global__ void reduction(const T* x, T* sum, int n, T* workspace) {
      T mine = 0;
      for (int i = blockIdx.x * block_size_x + threadIdx.x; i < n; i += num_blocks * block_size_x)
        mine += x[i];
      mine = summed(mine);
      if (threadIdx.x == 0) workspace[blockIdx.x] = mine;
    }
    __global__ void finish(const T* x, T* sum, int n, T* workspace) {
      T mine = 0;
      for (int i = threadIdx.x; i < num_blocks; i += block_size_x) mine += workspace[i];
      mine = summed(mine);
      if (threadIdx.x == 0) *sum = mine;
    }
    """,
    name="reduction",
    operands={"x": "N"},
    out={"sum": ()},
    reference=lambda x: x.sum(),
    flops="N",
    parameters={"block_size_x": [64, 128, 256, 512], "num_blocks": [64, 128, 256, 512, 1024]},
    grid=["num_blocks"],
    block=["block_size_x"],
    launch={
        "workspace_bytes": "num_blocks * itemsize",
        "after": [{"kernel": "finish", "grid": ["1"], "block": ["block_size_x"]}],
    },
    finite=True,
)


def ring(rng, N, V):
    """Points around a star of V corners."""
    turns, far = np.linspace(0, 2 * np.pi, V, endpoint=False), 1 + 0.5 * rng.random(V)
    corners = np.stack([far * np.cos(turns), far * np.sin(turns)], axis=1)
    return {"corners": corners, "points": rng.uniform(-2, 2, (N, 2))}


def inside(points, corners):
    """Crossings of a ray to the right, of an odd number inside; edge by edge."""
    x, y = points.T.copy()
    odd = np.zeros(len(points), bool)
    for (xs, ys), (xe, ye) in zip(corners, np.roll(corners, 1, axis=0), strict=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            odd ^= ((ys > y) != (ye > y)) & (x < (xe - xs) * (y - ys) / (ye - ys) + xs)
    return odd.astype(np.int32)


pnpoly = autotune.kernel(
    source="""
    __global__ void pnpoly(const T* points, const T* corners, int* bitmap, int n, int v) {
      int first = blockIdx.x * block_size_x * tile_size + threadIdx.x;
      T x[tile_size], y[tile_size];
      int odd[tile_size] = {};
      #pragma unroll
      for (int k = 0; k < tile_size; ++k) {
        int i = min(first + k * block_size_x, n - 1);
        x[k] = points[2 * i];
        y[k] = points[2 * i + 1];
      }
      for (int j = 0, last = v - 1; j < v; last = j++) {
        T xs = corners[2 * j], ys = corners[2 * j + 1];
        T xe = corners[2 * last], ye = corners[2 * last + 1];
        T slope = (xe - xs) / (ye - ys);
        #pragma unroll
        for (int k = 0; k < tile_size; ++k)
          odd[k] ^= (ys > y[k]) != (ye > y[k]) && x[k] < slope * (y[k] - ys) + xs;
      }
      #pragma unroll
      for (int k = 0; k < tile_size; ++k)
        if (first + k * block_size_x < n) bitmap[first + k * block_size_x] = odd[k];
    }
    """,
    operands={"points": "Nx2", "corners": "Vx2"},
    out={"bitmap": "N"},
    reference=inside,
    inputs=ring,
    # Points on an edge, up to rounding, may be either.
    accept=lambda expected, got: np.mean(expected != got) < 1e-3,
    flops="6 * N * V",
    parameters={"block_size_x": [32 * i for i in range(1, 17)], "tile_size": [1, 2, 3, 4, 6, 8]},
    grid=["ceildiv(N, block_size_x * tile_size)"],
    block=["block_size_x"],
    cases=["1x3", "1000x600", "77x5"],
)

expdist = autotune.kernel(
    source="""
    // The sum over all pairs of exp(-distance^2 / (scale of a + scale of b)); blocks, then one.
    __device__ double summed(double sum) {
      __shared__ double part[block_size_x];
      part[threadIdx.x] = sum;
      __syncthreads();
      for (int half = block_size_x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
      }
      return part[0];
    }
    __global__ void expdist(const double* a, const double* b, const double* scale_a,
                            const double* scale_b, double* cost, int m, int n, double* workspace) {
      int i = blockIdx.x * block_size_x + threadIdx.x;
      double sum = 0;
      if (i < m)
        #pragma unroll loop_unroll
        for (int j = 0; j < n; ++j) {
          double x = a[2 * i] - b[2 * j], y = a[2 * i + 1] - b[2 * j + 1];
          sum += exp(-(x * x + y * y) / (scale_a[i] + scale_b[j]));
        }
      sum = summed(sum);
      if (threadIdx.x == 0) workspace[blockIdx.x] = sum;
    }
    __global__ void total(const double* a, const double* b, const double* scale_a,
                          const double* scale_b, double* cost, int m, int n, double* workspace) {
      int blocks = (m + block_size_x - 1) / block_size_x;
      double sum = 0;
      for (int i = threadIdx.x; i < blocks; i += block_size_x) sum += workspace[i];
      sum = summed(sum);
      if (threadIdx.x == 0) *cost = sum;
    }
    """,
    name="expdist",
    operands={"a": "Mx2", "b": "Nx2", "scale_a": "M", "scale_b": "N"},
    out={"cost": ()},
    reference=lambda a, b, scale_a, scale_b: np.exp(
        -((a[:, None] - b[None]) ** 2).sum(axis=2) / (scale_a[:, None] + scale_b[None])
    ).sum(),
    inputs=lambda rng, M, N: {"scale_a": 0.1 + rng.random(M), "scale_b": 0.1 + rng.random(N)},
    flops="10 * M * N",
    parameters={"block_size_x": [32, 64, 128, 256, 512], "loop_unroll": [1, 2, 4, 8]},
    grid=["ceildiv(M, block_size_x)"],
    block=["block_size_x"],
    launch={
        "workspace_bytes": "8 * ceildiv(M, block_size_x)",
        "after": [{"kernel": "total", "grid": ["1"], "block": ["block_size_x"]}],
    },
)

KERNELS = (vector_add, convolution, matmul, reduction, pnpoly, expdist)

if __name__ == "__main__":
    import cupy

    points = cupy.random.uniform(-2, 2, (1_000_000, 2), dtype="float32")
    bitmap = pnpoly(
        points, cupy.asarray(ring(np.random.default_rng(0), 1, 600)["corners"], "float32")
    )
    print(int(bitmap.sum()), "of", len(points), "points are inside")
