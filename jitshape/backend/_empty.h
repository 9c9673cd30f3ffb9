/* Empty: makes uninitialised CPU tensors of one dtype, as torch.empty_strided does.

In: empty(shape, strides), tuples of ints.  Out: a tensor from ATen's allocator.
The C interface of libtorch allocates, without torch's argument parser in between, which costs
more than the allocation; what goes wrong there is left to `otherwise`, torch's own function, which
raises the error.  Large memory is asked for in huge pages: it is about to be written as a whole,
and a page fault for each 4 kB costs as much as a kernel. */
#ifndef JITSHAPE_EMPTY_H
#define JITSHAPE_EMPTY_H

#include <sys/mman.h>

#define MOST_DIMENSIONS 64
#define HUGE_PAGE ((uintptr_t)1 << 21)
#define HUGE_PAGES_FROM (4 * HUGE_PAGE) /* bytes of a tensor */

typedef struct AtenTensor AtenTensor;

/* aoti_torch_empty_strided, aoti_torch_get_data_ptr, aoti_torch_delete_tensor_object and
   THPVariable_Wrap; the first three return 0 if all is well. */
static struct {
    int32_t (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t,
                     AtenTensor **);
    int32_t (*data)(AtenTensor *, void **);
    int32_t (*forget)(AtenTensor *);
    PyObject *(*wrap)(AtenTensor *);
} aten;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    int32_t dtype; /* as c10::ScalarType */
    int item_size;
    PyObject *otherwise;
} Empty;

static void
want_huge_pages(char *memory, int64_t bytes)
{
#ifdef MADV_HUGEPAGE
    uintptr_t low = ((uintptr_t)memory + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    uintptr_t high = ((uintptr_t)memory + (uintptr_t)bytes) & ~(HUGE_PAGE - 1);
    if (low < high) {
        madvise((void *)low, high - low, MADV_HUGEPAGE); /* a refusal changes nothing */
    }
#endif
}

/* The numbers of a tuple, if it is one of `count` numbers. */
static int
read_numbers(PyObject *tuple, Py_ssize_t count, int64_t *out)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (out[i] < 0) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

static PyObject *
empty_call(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Empty *self = (Empty *)callable;
    if (PyVectorcall_NARGS(nargsf) != 2 || kwnames != NULL || !PyTuple_Check(args[0]) ||
        !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "takes a tuple of sizes and a tuple of strides");
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
    int64_t sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    AtenTensor *tensor;
    sizes[0] = strides[0] = 0;
    if (aten.empty == NULL || count > MOST_DIMENSIONS || PyTuple_GET_SIZE(args[1]) != count ||
        !read_numbers(args[0], count, sizes) || !read_numbers(args[1], count, strides) ||
        aten.empty(count, sizes, strides, self->dtype, 0, 0, &tensor) != 0) {
        return PyObject_Vectorcall(self->otherwise, args, 2, NULL);
    }
    int64_t bytes = self->item_size;
    for (Py_ssize_t i = 0; i < count; i++) {
        bytes *= sizes[i];
    }
    void *memory;
    if (bytes >= (int64_t)HUGE_PAGES_FROM && aten.data(tensor, &memory) == 0) {
        want_huge_pages(memory, bytes);
    }
    PyObject *result = aten.wrap(tensor);
    aten.forget(tensor);
    return result;
}

static PyObject *
empty_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int dtype, item_size;
    PyObject *otherwise;
    if (!PyArg_ParseTuple(args, "iiO:Empty", &dtype, &item_size, &otherwise)) {
        return NULL;
    }
    Empty *self = (Empty *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = empty_call;
        self->dtype = dtype, self->item_size = item_size;
        self->otherwise = Py_NewRef(otherwise);
    }
    return (PyObject *)self;
}

static void
empty_dealloc(Empty *self)
{
    Py_XDECREF(self->otherwise);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef empty_members[] = {
    {"otherwise", T_OBJECT_EX, offsetof(Empty, otherwise), READONLY, "torch's own function"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Empty, vectorcall), READONLY, NULL},
    {NULL},
};

static PyTypeObject EmptyType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jitshape.backend._launch.Empty",
    .tp_doc = "Empty(scalar type, bytes an element, otherwise): empty(shape, strides)",
    .tp_basicsize = sizeof(Empty),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Empty, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = empty_new,
    .tp_dealloc = (destructor)empty_dealloc,
    .tp_members = empty_members,
};

/* use_aten(empty, data, forget, wrap): addresses, or four zeros. */
static PyObject *
use_aten(PyObject *module, PyObject *args)
{
    unsigned long long empty, data, forget, wrap;
    if (!PyArg_ParseTuple(args, "KKKK:use_aten", &empty, &data, &forget, &wrap)) {
        return NULL;
    }
    *(uintptr_t *)&aten.empty = (uintptr_t)empty;
    *(uintptr_t *)&aten.data = (uintptr_t)data;
    *(uintptr_t *)&aten.forget = (uintptr_t)forget;
    *(uintptr_t *)&aten.wrap = (uintptr_t)wrap;
    Py_RETURN_NONE;
}

#endif
