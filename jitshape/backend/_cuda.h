/* DeviceLaunch: starts a kernel on a GPU through the driver's cuLaunchKernelEx.

In: launch(grid, stream, tensor..., int..., float...), in the order of `kinds`.  Out: None; the
kernel is queued.  `kinds` has a letter a parameter: p, the memory of a tensor; i and l, integers
of 32 and 64 bits; d, a double; n, a null pointer that is no argument (Triton's unused scratch).
The driver is no dependency: its function comes as an address that was looked up at run time. */
#ifndef JITSHAPE_CUDA_H
#define JITSHAPE_CUDA_H

/* CUlaunchConfig of cuda.h, without attributes. */
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned attribute_count;
} LaunchConfig;

typedef int (*LaunchFunction)(const LaunchConfig *, void *, void **, void **);

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    LaunchFunction launch;
    void *kernel;
    unsigned threads, shared;
    Py_ssize_t count, arguments;
    char *kinds;
    PyObject *name, *owner;
} DeviceLaunch;

typedef union {
    void *pointer;
    int32_t i;
    int64_t l;
    double d;
} Parameter;

static int
device_parameter(char kind, PyObject *argument, Parameter *out)
{
    int64_t elements = 0;
    long long number;
    switch (kind) {
    case 'p':
        return data_pointer(argument, &out->pointer, &elements);
    case 'd':
        out->d = PyFloat_AsDouble(argument);
        return out->d == -1 && PyErr_Occurred() ? -1 : 0;
    default:
        number = PyLong_AsLongLong(argument);
        if (number == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (kind == 'i' && (number < INT32_MIN || number > INT32_MAX)) {
            PyErr_Format(PyExc_OverflowError, "%lld does not fit 32 bits", number);
            return -1;
        }
        if (kind == 'i') {
            out->i = (int32_t)number;
        }
        else {
            out->l = number;
        }
        return 0;
    }
}

static PyObject *
device_launch(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    DeviceLaunch *self = (DeviceLaunch *)callable;
    if (PyVectorcall_NARGS(nargsf) != self->arguments + 2 || kwnames != NULL) {
        PyErr_Format(PyExc_TypeError, "kernel %U takes a grid, a stream and %zd arguments",
                     self->name, self->arguments);
        return NULL;
    }
    unsigned long grid = PyLong_AsUnsignedLong(*args++);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (grid == 0) {
        Py_RETURN_NONE;
    }
    if (grid > INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "kernel %U: a grid of %lu programs", self->name, grid);
        return NULL;
    }
    void *stream = PyLong_AsVoidPtr(*args++);
    if (stream == NULL && PyErr_Occurred()) {
        return NULL;
    }
    Parameter values[MOST_ARGUMENTS];
    void *parameters[MOST_ARGUMENTS];
    for (Py_ssize_t i = 0; i < self->count; i++) {
        parameters[i] = &values[i];
        if (self->kinds[i] == 'n') {
            values[i].pointer = NULL;
        }
        else if (device_parameter(self->kinds[i], *args++, &values[i]) < 0) {
            return NULL;
        }
    }
    LaunchConfig config = {{(unsigned)grid, 1, 1}, {self->threads, 1, 1}, self->shared,
                           stream, NULL, 0};
    int status;
    /* The queue may be full until a host function, which may want the GIL, has run. */
    Py_BEGIN_ALLOW_THREADS
    status = self->launch(&config, self->kernel, parameters, NULL);
    Py_END_ALLOW_THREADS
    if (status != 0) {
        PyErr_Format(PyExc_RuntimeError, "kernel %U was not started: CUDA error %d", self->name,
                     status);
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
device_launch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *name, *owner;
    unsigned long long function, kernel;
    unsigned threads, shared;
    const char *kinds;
    if (!PyArg_ParseTuple(args, "UKKIIsO:DeviceLaunch", &name, &function, &kernel, &threads,
                          &shared, &kinds, &owner)) {
        return NULL;
    }
    Py_ssize_t count = strlen(kinds), given = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (strchr("pildn", kinds[i]) == NULL) {
            PyErr_Format(PyExc_ValueError, "a parameter of kind %c", kinds[i]);
            return NULL;
        }
        given += kinds[i] != 'n';
    }
    if (function == 0 || kernel == 0 || threads == 0 || count > MOST_ARGUMENTS) {
        PyErr_Format(PyExc_ValueError,
                     "kernel %U needs the driver's function, code, threads and at most %d "
                     "parameters", name, MOST_ARGUMENTS);
        return NULL;
    }
    DeviceLaunch *self = (DeviceLaunch *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->kinds = PyMem_Malloc(count + 1);
    if (self->kinds == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    memcpy(self->kinds, kinds, count + 1);
    self->vectorcall = device_launch;
    self->launch = (LaunchFunction)(uintptr_t)function;
    self->kernel = (void *)(uintptr_t)kernel;
    self->threads = threads, self->shared = shared;
    self->count = count, self->arguments = given;
    self->name = Py_NewRef(name);
    self->owner = Py_NewRef(owner);
    return (PyObject *)self;
}

static void
device_launch_dealloc(DeviceLaunch *self)
{
    PyMem_Free(self->kinds);
    Py_XDECREF(self->name);
    Py_XDECREF(self->owner);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef device_launch_members[] = {
    {"name", T_OBJECT_EX, offsetof(DeviceLaunch, name), READONLY, "the kernel's name"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(DeviceLaunch, vectorcall), READONLY, NULL},
    {NULL},
};

static PyTypeObject DeviceLaunchType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "jitshape.backend._launch.DeviceLaunch",
    .tp_doc = "DeviceLaunch(name, driver's function, kernel, threads, shared bytes, kinds, owner)",
    .tp_basicsize = sizeof(DeviceLaunch),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(DeviceLaunch, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = device_launch_new,
    .tp_dealloc = (destructor)device_launch_dealloc,
    .tp_members = device_launch_members,
};

#endif
