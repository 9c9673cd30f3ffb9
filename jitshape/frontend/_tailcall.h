/* TailCall: what compiled code returns to have its dispatcher make one more call in its place.

In: TailCall(callable, *args), made by the code of an entry or a bridge as its last act.
Out: `finish` makes the calls until one gives a result that is no TailCall.
So the frames of a function that is executed in pieces follow each other instead of lying above
each other: stacks do not grow with the rounds of a loop, a traceback shows each frame once, and
no frame of the compiler's lies between those of the user.
Invariant: no TailCall is ever seen by code of the user's. */
#ifndef JITSHAPE_TAILCALL_H
#define JITSHAPE_TAILCALL_H

typedef struct {
    PyObject_VAR_HEAD
    PyObject *items[1]; /* the callable, then its arguments */
} TailCall;

static PyTypeObject *tailcall_type;

static int
tailcall_traverse(TailCall *t, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(t));
    for (Py_ssize_t i = 0; i < Py_SIZE(t); i++) {
        Py_VISIT(t->items[i]);
    }
    return 0;
}

static int
tailcall_clear(TailCall *t)
{
    for (Py_ssize_t i = 0; i < Py_SIZE(t); i++) {
        Py_CLEAR(t->items[i]);
    }
    return 0;
}

static void
tailcall_dealloc(TailCall *t)
{
    PyTypeObject *type = Py_TYPE(t);
    PyObject_GC_UnTrack(t);
    tailcall_clear(t);
    type->tp_free(t);
    Py_DECREF(type);
}

static PyObject *
make_tailcall(PyObject *callable, PyObject *const *args, Py_ssize_t n)
{
    TailCall *t = PyObject_GC_NewVar(TailCall, tailcall_type, n + 1);
    if (t == NULL) {
        return NULL;
    }
    t->items[0] = Py_NewRef(callable);
    for (Py_ssize_t i = 0; i < n; i++) {
        t->items[i + 1] = Py_NewRef(args[i]);
    }
    PyObject_GC_Track(t);
    return (PyObject *)t;
}

static PyObject *
tailcall_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) == 0 || (kwargs != NULL && PyDict_GET_SIZE(kwargs))) {
        PyErr_SetString(PyExc_TypeError, "TailCall(callable, *args)");
        return NULL;
    }
    PyObject *const *items = &PyTuple_GET_ITEM(args, 0);
    return make_tailcall(items[0], items + 1, PyTuple_GET_SIZE(args) - 1);
}

/* As a sequence: the callable, then the arguments. */
static Py_ssize_t
tailcall_length(PyObject *t)
{
    return Py_SIZE(t);
}

static PyObject *
tailcall_item(PyObject *t, Py_ssize_t i)
{
    if (i < 0 || i >= Py_SIZE(t)) {
        PyErr_SetString(PyExc_IndexError, "TailCall index out of range");
        return NULL;
    }
    return Py_NewRef(((TailCall *)t)->items[i]);
}

static PyType_Slot tailcall_slots[] = {
    {Py_sq_length, tailcall_length},   {Py_sq_item, tailcall_item},
    {Py_tp_new, tailcall_new},         {Py_tp_traverse, tailcall_traverse},
    {Py_tp_clear, tailcall_clear},     {Py_tp_dealloc, tailcall_dealloc},
    {0},
};
static PyType_Spec tailcall_spec = {
    "jitshape.frontend._evalframe.TailCall", offsetof(TailCall, items), sizeof(PyObject *),
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, tailcall_slots};

/* One call, which may give a TailCall: a Dispatcher does not finish what it is called for here.
`holder`, or NULL, holds the arguments: it is cleared when compiled code has what it needs of them,
so that the others go before that code runs, as they would in the function itself. */
static PyObject *call_once(PyObject *callable, PyObject *const *args, size_t nargsf,
                           PyObject **holder);

static PyObject *
finish(PyObject *result)
{
    while (result != NULL && Py_IS_TYPE(result, tailcall_type)) {
        TailCall *t = (TailCall *)result;
        PyObject *callable = Py_NewRef(t->items[0]), *holder = result;
        result = call_once(callable, t->items + 1, Py_SIZE(t) - 1, &holder);
        Py_XDECREF(holder);
        Py_DECREF(callable);
    }
    return result;
}

static PyObject *
call_finished(PyObject *module, PyObject *const *args, Py_ssize_t n)
{
    if (n == 0) {
        PyErr_SetString(PyExc_TypeError, "call_finished(callable, *args)");
        return NULL;
    }
    return finish(call_once(args[0], args + 1, n - 1, NULL));
}

#endif
