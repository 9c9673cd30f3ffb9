/* Dispatcher: the callable that stands for a compiled function.

In: a call.  Arguments are bound to the function's slots, the entries' guard programs are run in
order, and the first that holds is called with its extracted objects; otherwise miss(dispatcher,
slots) gives the result.  A call that does not bind, or that is made while this thread bypasses
compiled code, goes to the function itself, so that CPython raises its own error.
Entries are published by replacing an immutable tuple; a call uses the tuple it started with. */
#ifndef JITSHAPE_DISPATCHER_H
#define JITSHAPE_DISPATCHER_H

typedef struct {
    PyObject_HEAD
    Program *program;
    PyObject *function;
    Py_ssize_t hits;
} Entry;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyFunctionObject *function;
    PyObject *code, *names; /* the binding below belongs to this code */
    PyObject *miss;
    PyObject *entries; /* tuple of Entry */
    PyObject *dict, *weakrefs;
    Py_ssize_t hits, misses;
    Py_ssize_t last; /* place of the entry that served the last call */
    int n_slots, n_positional, n_positional_only, n_keyword_only;
    char has_varargs, has_varkeywords, disabled;
} Dispatcher;

static __thread int bypass_depth;
static PyTypeObject *entry_type, *program_type, *dispatcher_type;

#define INLINE_SLOTS 32
#define INLINE_EXTRACT 64

/* ---- Entry */

static int
entry_traverse(Entry *e, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(e));
    Py_VISIT(e->program);
    Py_VISIT(e->function);
    return 0;
}

static int
entry_clear(Entry *e)
{
    Py_CLEAR(e->program);
    Py_CLEAR(e->function);
    return 0;
}

static void
entry_dealloc(Entry *e)
{
    PyTypeObject *type = Py_TYPE(e);
    PyObject_GC_UnTrack(e);
    entry_clear(e);
    type->tp_free(e);
    Py_DECREF(type);
}

static PyMemberDef entry_members[] = {
    {"program", T_OBJECT, offsetof(Entry, program), READONLY},
    {"function", T_OBJECT, offsetof(Entry, function), READONLY},
    {"hits", T_PYSSIZET, offsetof(Entry, hits), READONLY},
    {NULL},
};
static PyType_Slot entry_slots[] = {
    {Py_tp_traverse, entry_traverse}, {Py_tp_clear, entry_clear},
    {Py_tp_dealloc, entry_dealloc},   {Py_tp_members, entry_members},
    {0},
};
static PyType_Spec entry_spec = {
    "jitshape.frontend._evalframe.Entry", sizeof(Entry), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, entry_slots};

/* ---- evaluating entries */

static PyObject *
enter(Entry *entry, PyObject **extracted)
{
    int n = entry->program->n_extract;
    PyObject *function = Py_NewRef(entry->function);
    entry->hits++;
    PyObject *result = PyObject_Vectorcall(function, extracted + 1,
                                           n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    for (int i = 1; i <= n; i++) {
        Py_DECREF(extracted[i]);
    }
    Py_DECREF(function);
    return result;
}

/* 1: *result is the outcome of a hit (NULL: it raised); 0: no entry holds. */
static int
try_entry(Entry *entry, PyObject *const *slots, PyObject **result)
{
    PyObject *small[INLINE_EXTRACT + 1], **extracted = small;
    int n = entry->program->n_extract;
    if (n > INLINE_EXTRACT) {
        extracted = PyMem_Malloc((n + 1) * sizeof(PyObject *));
        if (extracted == NULL) {
            *result = PyErr_NoMemory();
            return 1;
        }
    }
    int failed = program_run(entry->program, slots, extracted + 1);
    *result = failed == -1 ? enter(entry, extracted) : NULL;
    if (extracted != small) {
        PyMem_Free(extracted);
    }
    return failed < 0;
}

/* The call of an entry without making it; NULL without an error: its guards do not hold. */
static PyObject *
entry_call(Entry *entry, PyObject *const *slots)
{
    int n = entry->program->n_extract;
    PyObject **extracted = PyMem_Malloc((n + 1) * sizeof(PyObject *));
    if (extracted == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *call = NULL;
    if (program_run(entry->program, slots, extracted) == -1) {
        entry->hits++;
        call = make_tailcall(entry->function, extracted, n);
        for (int i = 0; i < n; i++) {
            Py_DECREF(extracted[i]);
        }
    }
    PyMem_Free(extracted);
    return call;
}

/* The entry that served the last call is tried first: calls come in runs. */
static int
try_entries(Dispatcher *d, PyObject *const *slots, PyObject **result)
{
    PyObject *entries = Py_NewRef(d->entries);
    Py_ssize_t n = PyTuple_GET_SIZE(entries), last = d->last < n ? d->last : 0;
    int hit = n > 0 && try_entry((Entry *)PyTuple_GET_ITEM(entries, last), slots, result);
    for (Py_ssize_t i = 0; !hit && i < n; i++) {
        if (i != last) {
            hit = try_entry((Entry *)PyTuple_GET_ITEM(entries, i), slots, result);
            last = hit ? i : last;
        }
    }
    d->last = last;
    d->hits += hit;
    Py_DECREF(entries);
    return hit;
}

static PyObject *
dispatch(Dispatcher *d, PyObject *const *slots)
{
    PyObject *result;
    if (try_entries(d, slots, &result)) {
        return result;
    }
    d->misses++;
    PyObject *bound = PyTuple_New(d->n_slots);
    if (bound == NULL) {
        return NULL;
    }
    for (int i = 0; i < d->n_slots; i++) {
        PyTuple_SET_ITEM(bound, i, Py_NewRef(slots[i]));
    }
    PyObject *miss = Py_NewRef(d->miss);
    PyObject *const args[] = {NULL, (PyObject *)d, bound};
    result = PyObject_Vectorcall(miss, args + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    Py_DECREF(miss);
    Py_DECREF(bound);
    return result;
}

/* ---- binding */

static int
adopt_code(Dispatcher *d)
{
    PyCodeObject *code = (PyCodeObject *)d->function->func_code;
    PyObject *names = PyCode_GetVarnames(code), *none = PyTuple_New(0);
    if (names == NULL || none == NULL) {
        Py_XDECREF(names);
        Py_XDECREF(none);
        return -1;
    }
    d->n_positional = code->co_argcount;
    d->n_positional_only = code->co_posonlyargcount;
    d->n_keyword_only = code->co_kwonlyargcount;
    d->has_varargs = (code->co_flags & CO_VARARGS) != 0;
    d->has_varkeywords = (code->co_flags & CO_VARKEYWORDS) != 0;
    d->n_slots = d->n_positional + d->n_keyword_only + d->has_varargs + d->has_varkeywords;
    Py_XSETREF(d->names, names);
    Py_XSETREF(d->code, Py_NewRef(code));
    Py_XSETREF(d->entries, none); /* compiled from other code */
    return 0;
}

static int
parameter_index(Dispatcher *d, PyObject *name)
{
    int n = d->n_positional + d->n_keyword_only;
    for (int i = d->n_positional_only; i < n; i++) {
        if (PyTuple_GET_ITEM(d->names, i) == name) {
            return i;
        }
    }
    for (int i = d->n_positional_only; i < n; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(d->names, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

/* Put keyword arguments in their slots; those of no parameter go to `rest` if there is one. */
static int
bind_keywords(Dispatcher *d, PyObject *const *values, PyObject *kwnames, PyObject **slots,
              PyObject *rest)
{
    Py_ssize_t n = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int index = parameter_index(d, name);
        if (index >= 0) {
            if (slots[index] != NULL) {
                return -1;
            }
            slots[index] = values[i];
        } else if (rest == NULL || PyDict_SetItem(rest, name, values[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
bind_defaults(Dispatcher *d, PyObject **slots)
{
    PyObject *defaults = d->function->func_defaults, *named = d->function->func_kwdefaults;
    Py_ssize_t n_defaults = defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults);
    Py_ssize_t first = d->n_positional - n_defaults;
    for (int i = 0; i < d->n_positional; i++) {
        if (slots[i] == NULL) {
            if (i < first) {
                return -1;
            }
            slots[i] = PyTuple_GET_ITEM(defaults, i - first);
        }
    }
    for (int i = d->n_positional; i < d->n_positional + d->n_keyword_only; i++) {
        if (slots[i] == NULL) {
            PyObject *name = PyTuple_GET_ITEM(d->names, i);
            slots[i] = named == NULL ? NULL : PyDict_GetItemWithError(named, name);
            if (slots[i] == NULL) {
                return -1;
            }
        }
    }
    return 0;
}

/* 0, or -1 where the call does not bind.  *varargs and *varkeywords are new references. */
static int
bind(Dispatcher *d, PyObject *const *args, Py_ssize_t n, PyObject *kwnames, PyObject **slots,
     PyObject **varargs, PyObject **varkeywords)
{
    Py_ssize_t taken = n < d->n_positional ? n : d->n_positional;
    memset(slots, 0, sizeof(PyObject *) * d->n_slots);
    memcpy(slots, args, sizeof(PyObject *) * taken);
    int next = d->n_positional + d->n_keyword_only;
    if (d->has_varargs) {
        *varargs = PyTuple_New(n - taken);
        if (*varargs == NULL) {
            return -1;
        }
        for (Py_ssize_t i = taken; i < n; i++) {
            PyTuple_SET_ITEM(*varargs, i - taken, Py_NewRef(args[i]));
        }
        slots[next++] = *varargs;
    } else if (n > taken) {
        return -1;
    }
    if (d->has_varkeywords) {
        *varkeywords = PyDict_New();
        if (*varkeywords == NULL) {
            return -1;
        }
        slots[next] = *varkeywords;
    }
    if (bind_keywords(d, args + n, kwnames, slots, *varkeywords) < 0) {
        return -1;
    }
    return bind_defaults(d, slots);
}

static PyObject *
bind_and_dispatch(Dispatcher *d, PyObject *const *args, size_t nargsf, PyObject *kwnames)
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
        result = dispatch(d, slots);
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
dispatcher_step(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Dispatcher *d = (Dispatcher *)self;
    if (d->function == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "the compiled function was already collected");
        return NULL;
    }
    if (bypass_depth > 0 || d->disabled) {
        return PyObject_Vectorcall((PyObject *)d->function, args, nargsf, kwnames);
    }
    if (d->code != d->function->func_code && adopt_code(d) < 0) {
        return NULL;
    }
    /* The arguments are their own slots where each is one positional parameter. */
    if (kwnames == NULL && PyVectorcall_NARGS(nargsf) == d->n_slots &&
        d->n_slots == d->n_positional) {
        return dispatch(d, args);
    }
    return bind_and_dispatch(d, args, nargsf, kwnames);
}

static PyObject *
dispatcher_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    return finish(dispatcher_step(self, args, nargsf, kwnames));
}

static PyObject *
call_once(PyObject *callable, PyObject *const *args, size_t nargsf)
{
    if (Py_IS_TYPE(callable, dispatcher_type)) {
        return dispatcher_step(callable, args, nargsf, NULL);
    }
    return PyObject_Vectorcall(callable, args, nargsf, NULL);
}

/* ---- methods */

static PyObject *
add_entry(Dispatcher *d, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", "function", "at_front", NULL};
    PyObject *program, *function;
    int at_front = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|p", names, program_type, &program,
                                     &function, &at_front)) {
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
    entry->hits = 0;
    PyObject_GC_Track(entry);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyTuple_SET_ITEM(entries, i + at_front, Py_NewRef(PyTuple_GET_ITEM(d->entries, i)));
    }
    PyTuple_SET_ITEM(entries, at_front ? 0 : n, Py_NewRef(entry));
    Py_SETREF(d->entries, entries);
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
    if (entries == NULL) {
        return NULL;
    }
    Py_SETREF(d->entries, entries);
    Py_RETURN_NONE;
}

static PyObject *
clear_entries(Dispatcher *d, PyObject *unused)
{
    PyObject *none = PyTuple_New(0);
    if (none == NULL) {
        return NULL;
    }
    Py_SETREF(d->entries, none);
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
    if (check_slots(d, slots) < 0) {
        return NULL;
    }
    PyObject *entries = Py_NewRef(d->entries), *found = NULL;
    for (Py_ssize_t i = 0; found == NULL && i < PyTuple_GET_SIZE(entries); i++) {
        Entry *entry = (Entry *)PyTuple_GET_ITEM(entries, i);
        found = entry_call(entry, &PyTuple_GET_ITEM(slots, 0));
        if (found == NULL && PyErr_Occurred()) {
            break;
        }
    }
    Py_DECREF(entries);
    return found == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : found;
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
    PyObject *function, *miss;
    if (!PyArg_ParseTuple(args, "O!O", &PyFunction_Type, &function, &miss)) {
        return NULL;
    }
    Dispatcher *d = (Dispatcher *)type->tp_alloc(type, 0);
    if (d == NULL) {
        return NULL;
    }
    d->vectorcall = dispatcher_vectorcall;
    d->function = (PyFunctionObject *)Py_NewRef(function);
    d->miss = Py_NewRef(miss);
    PyObject *functools = PyImport_ImportModule("functools"), *done = NULL;
    if (functools != NULL && adopt_code(d) == 0) {
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
    Py_CLEAR(d->code);
    Py_CLEAR(d->names);
    type->tp_free(d);
    Py_DECREF(type);
}

static PyMethodDef dispatcher_methods[] = {
    {"add_entry", (PyCFunction)(void (*)(void))add_entry, METH_VARARGS | METH_KEYWORDS,
     "add_entry(program, function, at_front=False) -> Entry"},
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
