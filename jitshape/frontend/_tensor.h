/* Reading tensor metadata without running torch code.

In: a Python tensor.  Out: a TensorView that borrows from it.
Two ways: offsets into TensorImpl, found and proven by calibrate.py; or, where the proof failed,
a Python function `fields(tensor)` that calibrate.py supplies. */
#ifndef JITSHAPE_TENSOR_H
#define JITSHAPE_TENSOR_H

#define MAX_RANK 64
#define KIND_MASK 0xFFFFFFFFFFull /* dtype (16 bits), device type, device index, "has device" */

typedef struct {
    uint64_t keys, kind;
    int64_t rank, offset;
    const int64_t *sizes, *strides;
    const char *storage; /* first byte of the storage; NULL where it has none */
    int requires_grad, is_leaf;
    int64_t buffer[2 * MAX_RANK]; /* used only by the slow way */
} TensorView;

static struct {
    int direct;
    Py_ssize_t impl, keys, autograd, requires_grad, grad_fn, sizes, inline_rank, rank, kind, offset;
    Py_ssize_t storage, storage_data;
    PyTypeObject *type;
    PyObject *fields;
} layout;

/* A view also requires grad where its base came to require it later: what its autograd record has
   for a class, and that class's answer. */
static const void *view_class;
static unsigned char (*view_requires_grad)(const void *record);

/* Thread-local state of libc10; NULL where calibrate.py did not find it. */
static void *c10_library;
static const char *(*autograd_state)(void);
static Py_ssize_t autograd_byte; /* where the mode bits lie in the autograd state */
static const char *local_keys_symbol;
static int8_t (*autocast_dtype)(int8_t device);
static uint8_t (*autocast_enabled)(int8_t device);
static uint16_t (*default_dtype)(void);
static int64_t (*function_modes)(void);
static const void *const *(*saved_tensor_hooks)(void); /* their stack: a deque */
static __thread const uint64_t *local_keys;

#define AT(type, base, offset) (*(type *)((char *)(base) + (offset)))

static int
read_direct(PyObject *tensor, TensorView *view)
{
    char *impl = AT(char *, tensor, layout.impl);
    if (impl == NULL) {
        return 0;
    }
    view->keys = AT(uint64_t, impl, layout.keys);
    view->kind = AT(uint64_t, impl, layout.kind) & KIND_MASK;
    view->rank = AT(int64_t, impl, layout.rank);
    view->offset = AT(int64_t, impl, layout.offset);
    if (view->rank <= layout.inline_rank) {
        view->sizes = (const int64_t *)(impl + layout.sizes);
        view->strides = view->sizes + layout.inline_rank;
    } else {
        view->sizes = AT(const int64_t *, impl, layout.sizes);
        view->strides = view->sizes + view->rank;
    }
    char *autograd = AT(char *, impl, layout.autograd);
    int has_grad_fn = autograd != NULL && AT(void *, autograd, layout.grad_fn) != NULL;
    view->is_leaf = !has_grad_fn;
    view->requires_grad =
        has_grad_fn || (autograd != NULL && AT(uint8_t, autograd, layout.requires_grad));
    if (autograd != NULL && !view->requires_grad && AT(const void *, autograd, 0) == view_class) {
        view->requires_grad = view_requires_grad(autograd) != 0;
    }
    char *storage = AT(char *, impl, layout.storage);
    view->storage = storage == NULL ? NULL : AT(const char *, storage, layout.storage_data);
    return 1;
}

static int
read_fields(PyObject *tensor, TensorView *view)
{
    PyObject *sizes, *strides;
    unsigned long long keys, kind, storage;
    long long offset;
    if (layout.fields == NULL) {
        return 0;
    }
    PyObject *t = PyObject_CallOneArg(layout.fields, tensor);
    if (t == NULL) {
        return 0;
    }
    int ok = PyArg_ParseTuple(t, "KKLppKO!O!", &keys, &kind, &offset, &view->requires_grad,
                              &view->is_leaf, &storage, &PyTuple_Type, &sizes, &PyTuple_Type,
                              &strides);
    if (ok && PyTuple_GET_SIZE(sizes) <= MAX_RANK) {
        view->keys = keys, view->kind = kind, view->offset = offset;
        view->storage = (const char *)(uintptr_t)storage;
        view->rank = PyTuple_GET_SIZE(sizes);
        view->sizes = view->buffer, view->strides = view->buffer + view->rank;
        for (Py_ssize_t i = 0; i < view->rank; i++) {
            view->buffer[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(sizes, i));
            view->buffer[view->rank + i] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, i));
        }
        ok = !PyErr_Occurred();
    } else {
        ok = 0;
    }
    Py_DECREF(t);
    return ok;
}

static inline int
read_tensor(PyObject *tensor, TensorView *view)
{
    if (layout.type == NULL || !PyObject_TypeCheck(tensor, layout.type)) {
        return 0;
    }
    return layout.direct ? read_direct(tensor, view) : read_fields(tensor, view);
}

/* What TensorMatches demands; sizes and strides of -1 are not compared. */
typedef struct {
    PyTypeObject *type;
    uint64_t keys, kind;
    int64_t rank;
    int requires_grad, is_leaf; /* is_leaf -1: not compared */
    int64_t dims[];             /* rank sizes, then rank strides */
} TensorSpec;

static int
view_matches(const TensorView *view, const TensorSpec *spec)
{
    if (view->keys != spec->keys || view->kind != spec->kind || view->rank != spec->rank ||
        view->requires_grad != spec->requires_grad ||
        (spec->is_leaf >= 0 && view->is_leaf != spec->is_leaf)) {
        return 0;
    }
    for (int64_t i = 0; i < view->rank; i++) {
        int64_t size = spec->dims[i], stride = spec->dims[view->rank + i];
        if (size >= 0 && view->sizes[i] != size) {
            return 0;
        }
        if (stride >= 0 && view->strides[i] != stride && view->sizes[i] > 1) {
            return 0;
        }
    }
    return 1;
}

static inline int
same_spec(const TensorSpec *a, const TensorSpec *b)
{
    return a->rank == b->rank &&
           memcmp(a, b, sizeof *a + 2 * (size_t)a->rank * sizeof(int64_t)) == 0;
}

/* The bytes [first, last) that a tensor's elements can lie in; an empty tensor has none. */
static void
tensor_extent(const TensorView *view, int64_t itemsize, const char **first, const char **last)
{
    int64_t low = view->offset, high = view->offset + 1;
    for (int64_t i = 0; i < view->rank; i++) {
        if (view->sizes[i] == 0) {
            high = low;
            break;
        }
        high += (view->sizes[i] - 1) * view->strides[i];
    }
    *first = view->storage + low * itemsize;
    *last = view->storage + high * itemsize;
}

static int
tensors_overlap(PyObject *a, int64_t itemsize_a, PyObject *b, int64_t itemsize_b)
{
    TensorView x, y;
    const char *first_a, *last_a, *first_b, *last_b;
    if (!read_tensor(a, &x) || !read_tensor(b, &y)) {
        return -1;
    }
    tensor_extent(&x, itemsize_a, &first_a, &last_a);
    tensor_extent(&y, itemsize_b, &first_b, &last_b);
    return first_a < last_b && first_b < last_a && first_a < last_a && first_b < last_b;
}

typedef struct {
    const char *first, *last;
    int group, is_written;
} Span;

static int
by_first_byte(const void *a, const void *b)
{
    const char *x = ((const Span *)a)->first, *y = ((const Span *)b)->first;
    return (x > y) - (x < y);
}

static int
spans_apart(Span *spans, Py_ssize_t n)
{
    qsort(spans, n, sizeof *spans, by_first_byte);
    for (Py_ssize_t i = 0; i < n; i++) {
        for (Py_ssize_t j = i + 1; j < n && spans[j].first < spans[i].last; j++) {
            if (spans[j].first < spans[j].last && spans[i].group != spans[j].group &&
                (spans[i].is_written || spans[j].is_written)) {
                return 0;
            }
        }
    }
    return 1;
}

/* apart(written, itemsizes, groups, *tensors): whether the first `written` tensors share no memory
   with any tensor of another group. */
static PyObject *
apart(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t n = nargs - 3;
    if (n < 0 || !PyLong_Check(args[0]) || !PyBytes_Check(args[1]) || !PyTuple_Check(args[2]) ||
        PyBytes_GET_SIZE(args[1]) != n || PyTuple_GET_SIZE(args[2]) != n) {
        PyErr_SetString(PyExc_TypeError, "apart(written, itemsizes, groups, *tensors)");
        return NULL;
    }
    Py_ssize_t written = PyLong_AsSsize_t(args[0]);
    Span *spans = PyMem_Malloc((n + 1) * sizeof *spans);
    if (spans == NULL) {
        return PyErr_NoMemory();
    }
    int known = 1;
    for (Py_ssize_t i = 0; i < n && known; i++) {
        TensorView view;
        known = read_tensor(args[3 + i], &view);
        if (known) {
            tensor_extent(&view, PyBytes_AS_STRING(args[1])[i], &spans[i].first, &spans[i].last);
            spans[i].group = (int)PyLong_AsLong(PyTuple_GET_ITEM(args[2], i));
            spans[i].is_written = i < written;
        }
    }
    int result = known && spans_apart(spans, n);
    PyMem_Free(spans);
    if (PyErr_Occurred()) {
        return NULL;
    }
    return PyBool_FromLong(result);
}

static int
tensors_share_storage(PyObject *a, PyObject *b)
{
    TensorView x, y;
    /* storages without a byte have no address: whether there is one or two cannot be seen */
    return read_tensor(a, &x) && read_tensor(b, &y) && x.storage == y.storage;
}

static PyObject *
set_tensor_layout(PyObject *module, PyObject *kwargs_tuple)
{
    PyObject *type, *fields;
    Py_ssize_t o[12];
    int direct;
    if (!PyArg_ParseTuple(kwargs_tuple, "O!Op(nnnnnnnnnnnn)", &PyType_Type, &type, &fields, &direct,
                          &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7], &o[8], &o[9],
                          &o[10], &o[11])) {
        return NULL;
    }
    layout.impl = o[0], layout.keys = o[1], layout.autograd = o[2], layout.requires_grad = o[3];
    layout.grad_fn = o[4], layout.sizes = o[5], layout.inline_rank = o[6], layout.rank = o[7];
    layout.kind = o[8], layout.offset = o[9], layout.storage = o[10], layout.storage_data = o[11];
    layout.direct = direct;
    Py_XSETREF(layout.type, (PyTypeObject *)Py_NewRef(type));
    Py_XSETREF(layout.fields, Py_NewRef(fields));
    Py_RETURN_NONE;
}

static PyObject *
set_view_class(PyObject *module, PyObject *args)
{
    unsigned long long class, answer;
    if (!PyArg_ParseTuple(args, "KK", &class, &answer)) {
        return NULL;
    }
    view_class = (const void *)(uintptr_t)class;
    view_requires_grad = (unsigned char (*)(const void *))(uintptr_t)answer;
    Py_RETURN_NONE;
}

static PyObject *
set_thread_state(PyObject *module, PyObject *args)
{
    const char *path, *autograd, *keys;
    if (!PyArg_ParseTuple(args, "sssn", &path, &autograd, &keys, &autograd_byte)) {
        return NULL;
    }
    c10_library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (c10_library == NULL) {
        Py_RETURN_FALSE;
    }
    autograd_state = (const char *(*)(void))dlsym(c10_library, autograd);
    char *copy = strdup(keys);
    local_keys_symbol = copy != NULL && dlsym(c10_library, copy) != NULL ? copy : NULL;
    return PyBool_FromLong(autograd_state != NULL && local_keys_symbol != NULL);
}

static PyObject *
set_mode_readers(PyObject *module, PyObject *args)
{
    unsigned long long enabled, dtype, initial;
    if (!PyArg_ParseTuple(args, "KKK", &enabled, &dtype, &initial)) {
        return NULL;
    }
    autocast_enabled = (uint8_t(*)(int8_t))(uintptr_t)enabled;
    autocast_dtype = (int8_t(*)(int8_t))(uintptr_t)dtype;
    default_dtype = (uint16_t(*)(void))(uintptr_t)initial;
    Py_RETURN_NONE;
}

enum { DEQUE_START = 2, DEQUE_END = 6 }; /* words of a std::deque: its first and its end */

/* The functions that tell function modes and hooks on saved tensors, or 0. */
static PyObject *
set_stack_readers(PyObject *module, PyObject *args)
{
    unsigned long long modes, hooks;
    if (!PyArg_ParseTuple(args, "KK", &modes, &hooks)) {
        return NULL;
    }
    function_modes = (int64_t(*)(void))(uintptr_t)modes;
    saved_tensor_hooks = (const void *const *(*)(void))(uintptr_t)hooks;
    Py_RETURN_NONE;
}

/* Bit 0: there are hooks on saved tensors; above it the number of function modes. */
static int64_t
stack_word(void)
{
    const void *const *hooks = saved_tensor_hooks();
    return function_modes() << 1 | (hooks[DEQUE_START] != hooks[DEQUE_END]);
}

static PyObject *
stacks(PyObject *module, PyObject *unused)
{
    if (function_modes == NULL || saved_tensor_hooks == NULL) {
        Py_RETURN_NONE;
    }
    return PyLong_FromLongLong(stack_word());
}

/* Of CPU and CUDA a byte each for "enabled" and for the dtype that autocast casts to. */
static uint32_t
autocast_word(void)
{
    uint32_t word = 0;
    for (int8_t device = 0; device < 2; device++) {
        word = word << 16 | (uint32_t)(autocast_enabled(device) & 1) << 8 |
               (uint8_t)autocast_dtype(device);
    }
    return word;
}

static PyObject *
mode_words(PyObject *module, PyObject *unused)
{
    if (autocast_enabled == NULL || autocast_dtype == NULL || default_dtype == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("ki", (unsigned long)autocast_word(), (int)default_dtype());
}

/* Address of this thread's (included, excluded) raw dispatch key sets, or NULL. */
static inline const uint64_t *
thread_keys(void)
{
    if (local_keys == NULL && local_keys_symbol != NULL) {
        local_keys = dlsym(c10_library, local_keys_symbol);
    }
    return local_keys;
}

static PyObject *
thread_state(PyObject *module, PyObject *unused)
{
    const uint64_t *keys = thread_keys();
    if (autograd_state == NULL || keys == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("iKK", (int)(uint8_t)autograd_state()[autograd_byte], (unsigned long long)keys[0],
                         (unsigned long long)keys[1]);
}

static PyObject *
tensor_view(PyObject *module, PyObject *tensor)
{
    TensorView v;
    if (!read_tensor(tensor, &v)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "not a readable tensor");
        }
        return NULL;
    }
    PyObject *sizes = PyTuple_New(v.rank), *strides = PyTuple_New(v.rank);
    for (Py_ssize_t i = 0; sizes && strides && i < v.rank; i++) {
        PyTuple_SET_ITEM(sizes, i, PyLong_FromLongLong(v.sizes[i]));
        PyTuple_SET_ITEM(strides, i, PyLong_FromLongLong(v.strides[i]));
    }
    return Py_BuildValue("KKLNNKNN", (unsigned long long)v.keys, (unsigned long long)v.kind,
                         (long long)v.offset, PyBool_FromLong(v.requires_grad),
                         PyBool_FromLong(v.is_leaf), (unsigned long long)(uintptr_t)v.storage,
                         sizes, strides);
}

#endif
