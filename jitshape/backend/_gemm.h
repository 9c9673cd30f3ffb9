/* Gemm: calls the BLAS that torch itself calls, on memory instead of tensors.

In: gemm(out, a, b, [bias,] m, n, k, lda, ldb, a_shift, b_shift).  Out: None;
out = a b (+ bias in every row).  `a` and `b` give memory only: sizes, distances of rows and first
elements come as numbers, so that no view is made of a tensor.  `out` is contiguous. */
#ifndef JITSHAPE_GEMM_H
#define JITSHAPE_GEMM_H

typedef void (*GemmFunction)(const char *, const char *, const int64_t *, const int64_t *,
                             const int64_t *, const void *, const void *, const int64_t *,
                             const void *, const int64_t *, const void *, void *, const int64_t *);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    GemmFunction function; /* with 64-bit sizes */
    int item_size, transpose_a, transpose_b, has_bias;
} Gemm;

/* Rows as BLAS wants them: at least as far apart as they are long, be there but one. */
static int64_t
leading(int64_t distance, int64_t length)
{
    int64_t least = length > 1 ? length : 1;
    return distance > least ? distance : least;
}

static void
multiply(Gemm *g, char *out, const char *a, const char *b, const char *bias, const int64_t *n)
{
    int64_t rows = n[0], columns = n[1], inner = n[2];
    int64_t lda = leading(n[3], g->transpose_a ? rows : inner);
    int64_t ldb = leading(n[4], g->transpose_b ? inner : columns), ldc = leading(0, columns);
    const float one_f = 1, zero_f = 0;
    const double one_d = 1, zero_d = 0;
    int is_float = g->item_size == 4;
    const void *one = is_float ? (const void *)&one_f : &one_d;
    const void *zero = is_float ? (const void *)&zero_f : &zero_d;
    size_t row = (size_t)columns * g->item_size;
    for (int64_t i = 0; bias != NULL && i < rows; i++) {
        memcpy(out + i * row, bias, row);
    }
    if (inner == 0) {
        if (bias == NULL) {
            memset(out, 0, rows * row);
        }
        return;
    }
    /* Row by row is column by column of the transposed: out' = b' a'. */
    g->function(g->transpose_b ? "T" : "N", g->transpose_a ? "T" : "N", &columns, &rows, &inner, one,
                b + n[6] * g->item_size, &ldb, a + n[5] * g->item_size, &lda,
                bias != NULL ? one : zero, out, &ldc);
}

static PyObject *
gemm_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Gemm *g = (Gemm *)callable;
    int tensors = 3 + g->has_bias;
    if (PyVectorcall_NARGS(nargsf) != tensors + 7 || kwnames != NULL) {
        PyErr_Format(PyExc_TypeError, "a matrix product takes %d tensors and 7 numbers", tensors);
        return NULL;
    }
    void *memory[4] = {NULL};
    int64_t numbers[7], elements = 0;
    for (int i = 0; i < tensors; i++) {
        if (data_pointer(*args++, &memory[i], &elements) < 0) {
            return NULL;
        }
    }
    for (int i = 0; i < 7; i++) {
        numbers[i] = PyLong_AsLongLong(*args++);
        if (numbers[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    if (numbers[0] <= 0 || numbers[1] <= 0) {
        Py_RETURN_NONE;
    }
    if (elements < GIL_KEPT_BELOW) {
        multiply(g, memory[0], memory[1], memory[2], memory[3], numbers);
    }
    else {
        Py_BEGIN_ALLOW_THREADS
        multiply(g, memory[0], memory[1], memory[2], memory[3], numbers);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *
gemm_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long address;
    int item_size, transpose_a, transpose_b, has_bias;
    if (!PyArg_ParseTuple(args, "Kippp:Gemm", &address, &item_size, &transpose_a, &transpose_b,
                          &has_bias)) {
        return NULL;
    }
    if (address == 0 || (item_size != 4 && item_size != 8)) {
        PyErr_SetString(PyExc_ValueError, "needs a function, for elements of 4 or 8 bytes");
        return NULL;
    }
    Gemm *g = (Gemm *)type->tp_alloc(type, 0);
    if (g != NULL) {
        g->vectorcall = gemm_call;
        g->function = (GemmFunction)(uintptr_t)address;
        g->item_size = item_size, g->has_bias = has_bias;
        g->transpose_a = transpose_a, g->transpose_b = transpose_b;
    }
    return (PyObject *)g;
}

static PyMemberDef gemm_members[] = {
    {"item_size", T_INT, offsetof(Gemm, item_size), READONLY, NULL},
    {"transpose_a", T_INT, offsetof(Gemm, transpose_a), READONLY, NULL},
    {"transpose_b", T_INT, offsetof(Gemm, transpose_b), READONLY, NULL},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gemm, vectorcall), READONLY, NULL},
    {NULL},
};

static PyTypeObject GemmType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jitshape.backend._launch.Gemm",
    .tp_doc = "Gemm(address, item size, transpose a, transpose b, has bias)",
    .tp_basicsize = sizeof(Gemm),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Gemm, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = gemm_new,
    .tp_members = gemm_members,
};

#endif
