/* Dispatcher: the callable that stands for a compiled function.

In: a call.  Its arguments are bound to the function's slots, and the entry whose guards hold is
called with its extracted objects; otherwise miss(dispatcher, slots) gives the result.  A call that
does not bind, or that is made while this thread bypasses compiled code, goes to the function
itself. */
#ifndef JITSHAPE_DISPATCHER_H
#define JITSHAPE_DISPATCHER_H

#define INLINE_SLOTS 32

static PyObject *
miss(Dispatcher *d, PyObject *const *slots)
{
    d->misses++;
    PyObject *bound = PyTuple_New(d->n_slots);
    if (bound == NULL) {
        return NULL;
    }
    for (int i = 0; i < d->n_slots; i++) {
        PyTuple_SET_ITEM(bound, i, Py_NewRef(slots[i]));
    }
    PyObject *callable = Py_NewRef(d->miss);
    PyObject *const args[] = {NULL, (PyObject *)d, bound};
    give_room(ROOM);
    PyObject *result =
        PyObject_Vectorcall(callable, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    give_room(-ROOM);
    Py_DECREF(callable);
    Py_DECREF(bound);
    return result;
}

static PyObject *
dispatch(Dispatcher *d, PyObject *const *slots, PyObject **holder)
{
    Choice choice;
    int found = choose(d, slots, &choice);
    if (found <= 0) {
        return found < 0 ? NULL : miss(d, slots);
    }
    PyObject *function = Py_NewRef(choice.entry->function);
    if (holder != NULL) {
        Py_CLEAR(*holder);
    }
    PyObject *result = PyObject_Vectorcall(function, choice.arguments + 1,
                                           choice.n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(function);
    choice_end(&choice);
    return result;
}

static PyObject *
bind_and_dispatch(Dispatcher *d, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                  PyObject **holder)
{
    PyObject *small[INLINE_SLOTS], **slots = small, *varargs = NULL, *varkeywords = NULL, *result;
    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    if (d->n_slots > INLINE_SLOTS) {
        slots = PyMem_Malloc(d->n_slots * sizeof(PyObject *));
        if (slots == NULL) {
            return PyErr_NoMemory();
        }
    }
    if (bind(d, args, n, kwnames, slots, &varargs, &varkeywords) == 0) {
        result = dispatch(d, slots, holder);
    } else {
        PyErr_Clear();
        result = PyObject_Vectorcall((PyObject *)d->function, args, nargsf, kwnames);
    }
    Py_XDECREF(varargs);
    Py_XDECREF(varkeywords);
    if (slots != small) {
        PyMem_Free(slots);
    }
    return result;
}

/* A call up to what its entry returns, which may be a TailCall. */
static PyObject *
dispatcher_step(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames,
                PyObject **holder)
{
    Dispatcher *d = (Dispatcher *)self;
    if (d->function == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "the compiled function was already collected");
        return NULL;
    }
    int is_foreign = is_foreign_evaluated();
    if (is_foreign && notice_foreign() < 0) {
        return NULL;
    }
    if (bypass_depth > 0 || d->disabled || is_foreign) {
        return PyObject_Vectorcall((PyObject *)d->function, args, nargsf, kwnames);
    }
    if (d->code != d->function->func_code && adopt_code(d) < 0) {
        return NULL;
    }
    /* The arguments are their own slots where each is one positional parameter. */
    if (kwnames == NULL && PyVectorcall_NARGS(nargsf) == d->n_slots &&
        d->n_slots == d->n_positional) {
        return dispatch(d, args, holder);
    }
    return bind_and_dispatch(d, args, nargsf, kwnames, holder);
}

static PyObject *
dispatcher_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return finish(dispatcher_step(self, args, nargsf, kwnames, NULL));
}

static PyObject *
call_once(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject **holder)
{
    if (Py_IS_TYPE(callable, dispatcher_type)) {
        return dispatcher_step(callable, args, nargsf, NULL, holder);
    }
    return PyObject_Vectorcall(callable, args, nargsf, NULL);
}

/* ---- methods */

static PyObject *
add_entry(Dispatcher *d, PyObject *args)
{
    PyObject *program, *function;
    if (!PyArg_ParseTuple(args, "O!O", program_type, &program, &function)) {
        return NULL;
    }
    if (((Program *)program)->n_slots > d->n_slots) {
        PyErr_SetString(PyExc_ValueError, "the program has more slots than the function");
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(d->entries);
    PyObject *entries = PyTuple_New(n + 1);
    Entry *entry = PyObject_GC_New(Entry, entry_type);
    if (entries == NULL || entry == NULL) {
        Py_XDECREF(entries);
        Py_XDECREF(entry);
        return NULL;
    }
    entry->program = (Program *)Py_NewRef(program);
    entry->function = Py_NewRef(function);
    entry->hits = entry->timed = 0;
    entry->used = d->calls;
    entry->guard_seconds = 0;
    entry->created = seconds_now();
    PyObject_GC_Track(entry);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyTuple_SET_ITEM(entries, i, Py_NewRef(PyTuple_GET_ITEM(d->entries, i)));
    }
    PyTuple_SET_ITEM(entries, n, Py_NewRef(entry));
    if (publish(d, entries) < 0) {
        Py_CLEAR(entry);
    }
    return (PyObject *)entry;
}

static PyObject *
remove_entry(Dispatcher *d, PyObject *entry)
{
    Py_ssize_t n = PyTuple_GET_SIZE(d->entries);
    PyObject *kept = PyList_New(0);
    for (Py_ssize_t i = 0; kept != NULL && i < n; i++) {
        PyObject *e = PyTuple_GET_ITEM(d->entries, i);
        if (e != entry && PyList_Append(kept, e) < 0) {
            Py_CLEAR(kept);
        }
    }
    PyObject *entries = kept == NULL ? NULL : PyList_AsTuple(kept);
    Py_XDECREF(kept);
    if (publish(d, entries) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
clear_entries(Dispatcher *d, PyObject *unused)
{
    if (publish(d, PyTuple_New(0)) < 0) {
        return NULL;
    }
    d->hits = d->misses = 0;
    Py_RETURN_NONE;
}

static int
check_slots(Dispatcher *d, PyObject *slots)
{
    if (!PyTuple_Check(slots) || PyTuple_GET_SIZE(slots) != d->n_slots) {
        PyErr_Format(PyExc_TypeError, "expected a tuple of %d slots", d->n_slots);
        return -1;
    }
    return 0;
}

/* The call of the entry that holds, as a TailCall, or None. */
static PyObject *
find_entry(Dispatcher *d, PyObject *slots)
{
    Choice choice;
    if (check_slots(d, slots) < 0) {
        return NULL;
    }
    int found = choose(d, &PyTuple_GET_ITEM(slots, 0), &choice);
    if (found <= 0) {
        return found < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *call = make_tailcall(choice.entry->function, choice.arguments + 1, choice.n);
    choice_end(&choice);
    return call;
}

/* Call the function itself as the call that gave these slots did. */
static PyObject *
call_original(Dispatcher *d, PyObject *slots)
{
    if (check_slots(d, slots) < 0) {
        return NULL;
    }
    int named = d->n_positional + d->n_keyword_only;
    PyObject *args = PyTuple_GetSlice(slots, 0, d->n_positional);
    PyObject *kwargs = d->has_varkeywords ? PyDict_Copy(PyTuple_GET_ITEM(slots, d->n_slots - 1))
                                          : PyDict_New();
    if (d->has_varargs && args != NULL) {
        Py_SETREF(args, PySequence_Concat(args, PyTuple_GET_ITEM(slots, named)));
    }
    for (int i = d->n_positional; kwargs != NULL && i < named; i++) {
        if (PyDict_SetItem(kwargs, PyTuple_GET_ITEM(d->names, i), PyTuple_GET_ITEM(slots, i)) < 0) {
            Py_CLEAR(kwargs);
        }
    }
    PyObject *result = args == NULL || kwargs == NULL
                           ? NULL
                           : PyObject_Call((PyObject *)d->function, args, kwargs);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return result;
}

static PyObject *
dispatcher_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self)
                                                   : PyMethod_New(self, instance);
}

static PyObject *
dispatcher_repr(Dispatcher *d)
{
    return PyUnicode_FromFormat("<jitshape.compile(%R)>", d->function);
}

static PyObject *
dispatcher_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttrString(self, "__qualname__"); /* pickled by name, as functions are */
}

static PyObject *
dispatcher_copy(PyObject *self, PyObject *unused)
{
    return Py_NewRef(self);
}

static PyObject *
dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *function, *on_miss;
    if (!PyArg_ParseTuple(args, "O!O", &PyFunction_Type, &function, &on_miss)) {
        return NULL;
    }
    Dispatcher *d = (Dispatcher *)type->tp_alloc(type, 0);
    if (d == NULL) {
        return NULL;
    }
    d->vectorcall = dispatcher_vectorcall;
    d->function = (PyFunctionObject *)Py_NewRef(function);
    d->miss = Py_NewRef(on_miss);
    d->entries = PyTuple_New(0);
    d->tables = PyTuple_New(0);
    PyObject *functools = PyImport_ImportModule("functools"), *done = NULL;
    if (functools != NULL && d->entries != NULL && d->tables != NULL && adopt_code(d) == 0) {
        done = PyObject_CallMethod(functools, "update_wrapper", "OO", d, function);
    }
    Py_XDECREF(functools);
    if (done == NULL) {
        Py_DECREF(d);
        return NULL;
    }
    Py_DECREF(done);
    return (PyObject *)d;
}

static int
dispatcher_traverse(Dispatcher *d, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(d));
    Py_VISIT(d->function);
    Py_VISIT(d->code);
    Py_VISIT(d->miss);
    Py_VISIT(d->entries);
    Py_VISIT(d->tables);
    Py_VISIT(d->dict);
    return 0;
}

static int
dispatcher_clear(Dispatcher *d)
{
    Py_CLEAR(d->function);
    Py_CLEAR(d->miss);
    Py_CLEAR(d->dict);
    return 0;
}

static void
dispatcher_dealloc(Dispatcher *d)
{
    PyTypeObject *type = Py_TYPE(d);
    PyObject_GC_UnTrack(d);
    if (d->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)d);
    }
    dispatcher_clear(d);
    Py_CLEAR(d->entries);
    Py_CLEAR(d->tables);
    Py_CLEAR(d->code);
    Py_CLEAR(d->names);
    type->tp_free(d);
    Py_DECREF(type);
}

static PyMethodDef dispatcher_methods[] = {
    {"add_entry", (PyCFunction)add_entry, METH_VARARGS, "add_entry(program, function) -> Entry"},
    {"remove_entry", (PyCFunction)remove_entry, METH_O, "remove_entry(entry)"},
    {"clear", (PyCFunction)clear_entries, METH_NOARGS, "Forget all entries and counts."},
    {"find_entry", (PyCFunction)find_entry, METH_O,
     "find_entry(slots) -> TailCall of the entry that holds, or None"},
    {"call_original", (PyCFunction)call_original, METH_O,
     "call_original(slots): call the function itself with a call's slots"},
    {"__reduce__", dispatcher_reduce, METH_NOARGS},
    {"__copy__", dispatcher_copy, METH_NOARGS},
    {"__deepcopy__", dispatcher_copy, METH_O},
    {NULL},
};
static PyMemberDef dispatcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatcher, vectorcall), READONLY},
    {"__dictoffset__", T_PYSSIZET, offsetof(Dispatcher, dict), READONLY},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Dispatcher, weakrefs), READONLY},
    {"entries", T_OBJECT, offsetof(Dispatcher, entries), READONLY},
    {"tables", T_OBJECT, offsetof(Dispatcher, tables), READONLY},
    {"calls", T_PYSSIZET, offsetof(Dispatcher, calls), READONLY, "a clock for Entry.used"},
    {"hits", T_PYSSIZET, offsetof(Dispatcher, hits), READONLY},
    {"misses", T_PYSSIZET, offsetof(Dispatcher, misses), READONLY},
    {"miss", T_OBJECT, offsetof(Dispatcher, miss), 0},
    {"disabled", T_BOOL, offsetof(Dispatcher, disabled), 0},
    {"slot_count", T_INT, offsetof(Dispatcher, n_slots), READONLY},
    {NULL},
};
static PyGetSetDef dispatcher_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {NULL},
};
static PyType_Slot dispatcher_slots[] = {
    {Py_tp_new, dispatcher_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, dispatcher_get},
    {Py_tp_repr, dispatcher_repr},
    {Py_tp_traverse, dispatcher_traverse},
    {Py_tp_clear, dispatcher_clear},
    {Py_tp_dealloc, dispatcher_dealloc},
    {Py_tp_methods, dispatcher_methods},
    {Py_tp_members, dispatcher_members},
    {Py_tp_getset, dispatcher_getset},
    {0},
};
static PyType_Spec dispatcher_spec = {
    "jitshape.frontend._evalframe.Dispatcher", sizeof(Dispatcher), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_METHOD_DESCRIPTOR,
    dispatcher_slots};

static PyObject *
push_bypass(PyObject *module, PyObject *unused)
{
    bypass_depth++;
    Py_RETURN_NONE;
}

static PyObject *
pop_bypass(PyObject *module, PyObject *unused)
{
    if (bypass_depth == 0) {
        PyErr_SetString(PyExc_RuntimeError, "pop_bypass without push_bypass");
        return NULL;
    }
    bypass_depth--;
    Py_RETURN_NONE;
}

#endif
