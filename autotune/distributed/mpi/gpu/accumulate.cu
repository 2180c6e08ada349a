// Sums of matrices, compiled with T, the element type. Rows may lie apart; without another matrix
// only out is scaled, and where beta is zero it is not read. The grid may have any size.

extern "C" __global__ void accumulate(T* out, long long out_stride, const T* other,
                                      long long other_stride, long long rows, long long columns,
                                      T beta)
{
    const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    const long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = first; i < rows * columns; i += step) {
        const long long row = i / columns;
        const long long column = i % columns;
        T value = other ? other[row * other_stride + column] : T(0);
        if (beta != T(0)) {
            value += beta * out[row * out_stride + column];
        }
        out[row * out_stride + column] = value;
    }
}
