/* Binding: the arguments of a call to the slots of a function, as CPython does it.

In: a call.  Out: its slots in frame order (positional, keyword-only, *args, **kwargs), or -1 where
it does not bind: then the function itself is called, so that CPython raises its own error. */
#ifndef JITSHAPE_BINDING_H
#define JITSHAPE_BINDING_H

static int
adopt_code(Dispatcher *d)
{
    PyCodeObject *code = (PyCodeObject *)d->function->func_code;
    PyObject *names = PyCode_GetVarnames(code);
    if (names == NULL || publish(d, PyTuple_New(0)) < 0) { /* entries are of other code */
        Py_XDECREF(names);
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

#endif
