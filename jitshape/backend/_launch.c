/* Launcher: calls a compiled kernel with tensors, sizes and scalars.

In: launcher(tensor..., int..., float-or-int...).  Out: None; the kernel has run.
The kernel is `void k(void **buffers, const int64_t *sizes, const void *scalars)`, scalars being
8 bytes each, double or int64.  Data pointers come from torch's DLPack exchange table
(`torch.Tensor.__dlpack_c_exchange_api__`), which needs no header or library of torch; where it is
missing or refuses, from `tensor.data_ptr()`.
A launcher owns a reference to the engine that holds the code. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#define MOST_ARGUMENTS 256
#define GIL_KEPT_BELOW 32768 /* elements: releasing costs as much as computing these */

/* The part of the DLPack ABI (version 1) that is used. */
typedef struct {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    uint32_t major, minor;
    void *previous;
    void *allocate, *managed_from_object, *managed_to_object;
    int (*borrow)(void *object, DLTensor *out);
    void *current_stream;
} ExchangeTable;

typedef void (*Kernel)(void **, const int64_t *, const void *);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Kernel kernel;
    Py_ssize_t tensors, sizes, scalars;
    char *floats; /* of each scalar: is it a double */
    PyObject *name, *engine, *source;
} Launcher;

static ExchangeTable *exchange;
static PyObject *data_ptr_name;

static int
data_pointer(PyObject *tensor, void **out, int64_t *elements)
{
    if (exchange != NULL) {
        DLTensor t;
        if (exchange->borrow(tensor, &t) == 0) {
            int64_t count = 1;
            for (int32_t i = 0; i < t.ndim; i++) {
                count *= t.shape[i];
            }
            if (count > *elements) {
                *elements = count;
            }
            *out = (char *)t.data + t.byte_offset;
            return 0;
        }
        PyErr_Clear();
    }
    PyObject *pointer = PyObject_CallMethodNoArgs(tensor, data_ptr_name);
    if (pointer == NULL) {
        return -1;
    }
    *out = PyLong_AsVoidPtr(pointer);
    Py_DECREF(pointer);
    return *out == NULL && PyErr_Occurred() ? -1 : 0;
}

static PyObject *
launch(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Launcher *self = (Launcher *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf);
    Py_ssize_t wanted = self->tensors + self->sizes + self->scalars;
    if (given != wanted || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) != 0)) {
        PyErr_Format(PyExc_TypeError,
                     "kernel %U takes %zd tensors, %zd sizes and %zd scalars, got %zd arguments%s",
                     self->name, self->tensors, self->sizes, self->scalars, given,
                     kwnames != NULL ? " and keywords" : "");
        return NULL;
    }
    void *buffers[MOST_ARGUMENTS];
    int64_t sizes[MOST_ARGUMENTS];
    union { double f; int64_t i; } scalars[MOST_ARGUMENTS];
    int64_t elements = 0;
    for (Py_ssize_t i = 0; i < self->tensors; i++) {
        if (data_pointer(*args++, &buffers[i], &elements) < 0) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < self->sizes; i++) {
        sizes[i] = PyLong_AsLongLong(*args++);
        if (sizes[i] == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    for (Py_ssize_t i = 0; i < self->scalars; i++) {
        if (self->floats[i]) {
            scalars[i].f = PyFloat_AsDouble(*args++);
        }
        else {
            scalars[i].i = PyLong_AsLongLong(*args++);
        }
        if (PyErr_Occurred()) {
            return NULL;
        }
    }
    if (elements < GIL_KEPT_BELOW) {
        self->kernel(buffers, sizes, scalars);
    }
    else {
        /* The caller's references keep the tensors, its reference to us the engine. */
        Py_BEGIN_ALLOW_THREADS
        self->kernel(buffers, sizes, scalars);
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *
launcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "address", "tensors", "sizes", "floats", "engine",
                            "source", NULL};
    PyObject *name, *engine, *source;
    unsigned long long address;
    Py_ssize_t tensors, sizes, scalars;
    const char *floats;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UKnny#OU:Launcher", names, &name, &address,
                                     &tensors, &sizes, &floats, &scalars, &engine, &source)) {
        return NULL;
    }
    if (address == 0) {
        PyErr_Format(PyExc_ValueError, "kernel %U has no code", name);
        return NULL;
    }
    if (tensors < 0 || sizes < 0 || tensors > MOST_ARGUMENTS || sizes > MOST_ARGUMENTS ||
        scalars > MOST_ARGUMENTS) {
        PyErr_Format(PyExc_ValueError, "kernel %U has more than %d parameters of one kind", name,
                     MOST_ARGUMENTS);
        return NULL;
    }
    Launcher *self = (Launcher *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->floats = PyMem_Malloc(scalars ? scalars : 1);
    if (self->floats == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memcpy(self->floats, floats, scalars);
    self->vectorcall = launch;
    self->kernel = (Kernel)(uintptr_t)address;
    self->tensors = tensors;
    self->sizes = sizes;
    self->scalars = scalars;
    self->name = Py_NewRef(name);
    self->engine = Py_NewRef(engine);
    self->source = Py_NewRef(source);
    return (PyObject *)self;
}

static void
launcher_dealloc(Launcher *self)
{
    PyMem_Free(self->floats);
    Py_XDECREF(self->name);
    Py_XDECREF(self->engine);
    Py_XDECREF(self->source);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
launcher_repr(Launcher *self)
{
    return PyUnicode_FromFormat("<Launcher %U>", self->name);
}

static PyMemberDef launcher_members[] = {
    {"name", T_OBJECT_EX, offsetof(Launcher, name), READONLY, "the kernel's name"},
    {"engine", T_OBJECT_EX, offsetof(Launcher, engine), READONLY, "what owns the machine code"},
    {"source", T_OBJECT_EX, offsetof(Launcher, source), READONLY, "the generated LLVM IR"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launcher, vectorcall), READONLY, NULL},
    {NULL},
};

static PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jitshape.backend._launch.Launcher",
    .tp_doc = "launcher(tensor..., int..., float-or-int...): run a compiled kernel.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = launcher_new,
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_repr = (reprfunc)launcher_repr,
    .tp_members = launcher_members,
};

#include "_cuda.h"
#include "_empty.h"
#include "_gemm.h"

static PyObject *
use_exchange(PyObject *module, PyObject *capsule)
{
    if (capsule == Py_None) {
        exchange = NULL;
        Py_RETURN_FALSE;
    }
    ExchangeTable *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (table == NULL) {
        return NULL;
    }
    exchange = table->major == 1 && table->borrow != NULL ? table : NULL;
    return PyBool_FromLong(exchange != NULL);
}

static PyObject *
data_address(PyObject *module, PyObject *tensor)
{
    void *pointer;
    int64_t elements = 0;
    if (data_pointer(tensor, &pointer, &elements) < 0) {
        return NULL;
    }
    return PyLong_FromVoidPtr(pointer);
}

static PyMethodDef methods[] = {
    {"use_exchange", use_exchange, METH_O,
     "use_exchange(capsule or None): read tensors through this table; whether it can be used."},
    {"data_address", data_address, METH_O, "data_address(tensor): its data pointer."},
    {"use_aten", use_aten, METH_VARARGS,
     "use_aten(empty, data, forget, wrap): the addresses that Empty calls; zeros for none."},
    {NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "jitshape.backend._launch",
    .m_doc = "Calls compiled kernels.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC
PyInit__launch(void)
{
    if (PyType_Ready(&LauncherType) < 0 || PyType_Ready(&GemmType) < 0 ||
        PyType_Ready(&EmptyType) < 0 || PyType_Ready(&DeviceLaunchType) < 0) {
        return NULL;
    }
    data_ptr_name = PyUnicode_InternFromString("data_ptr");
    PyObject *module = PyModule_Create(&module_def);
    if (module == NULL || data_ptr_name == NULL ||
        PyModule_AddObjectRef(module, "Launcher", (PyObject *)&LauncherType) < 0 ||
        PyModule_AddObjectRef(module, "Gemm", (PyObject *)&GemmType) < 0 ||
        PyModule_AddObjectRef(module, "Empty", (PyObject *)&EmptyType) < 0 ||
        PyModule_AddObjectRef(module, "DeviceLaunch", (PyObject *)&DeviceLaunchType) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
