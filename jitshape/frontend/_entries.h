/* Entries: what a dispatcher has compiled, and the choice of the one that serves a call.

In: the slots of a call.  Out: the entry whose guards hold, that of the last call first (calls come
in runs), with the objects that its function takes.
Entries and their tables are published together, as immutable tuples; a call uses those that it
started with. */
#ifndef JITSHAPE_ENTRIES_H
#define JITSHAPE_ENTRIES_H

#define TIMED_EVERY 64 /* calls; a power of two */

typedef struct {
    PyObject_HEAD
    Program *program;
    PyObject *function;
    Py_ssize_t hits;
    Py_ssize_t used;      /* the dispatcher's count of calls at the last hit */
    double created;       /* time.monotonic() */
    double guard_seconds; /* of the calls whose guards were timed */
    Py_ssize_t timed;
} Entry;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyFunctionObject *function;
    PyObject *code, *names; /* the binding below belongs to this code */
    PyObject *miss;
    PyObject *entries; /* tuple of Entry */
    PyObject *tables;  /* tuple of Table, each of the next MOST_ENTRIES entries */
    PyObject *dict, *weakrefs;
    Py_ssize_t hits, misses;
    Py_ssize_t last; /* place of the entry that served the last call */
    Py_ssize_t calls;
    int n_slots, n_positional, n_positional_only, n_keyword_only;
    char has_varargs, has_varkeywords, disabled;
} Dispatcher;

static __thread int bypass_depth;
static PyTypeObject *entry_type, *dispatcher_type;

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
    {"used", T_PYSSIZET, offsetof(Entry, used), READONLY, "the dispatcher's `calls` at the last hit"},
    {"created", T_DOUBLE, offsetof(Entry, created), READONLY, "time.monotonic() when it was added"},
    {"guard_seconds", T_DOUBLE, offsetof(Entry, guard_seconds), READONLY,
     "what the guards took in the `timed` calls, a sample, that it served"},
    {"timed", T_PYSSIZET, offsetof(Entry, timed), READONLY},
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

/* ---- choosing */

typedef struct {
    Entry *entry;                          /* a new reference, or NULL: no entry holds */
    PyObject *small[INLINE_EXTRACT + 1];   /* room for the arguments of most entries */
    PyObject **arguments;                  /* behind [0]; new references */
    int n;
} Choice;

static void
choice_end(Choice *c)
{
    for (int i = 1; i <= c->n; i++) {
        Py_DECREF(c->arguments[i]);
    }
    if (c->arguments != c->small) {
        PyMem_Free(c->arguments);
    }
    Py_DECREF(c->entry);
}

static inline double
seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* 1: an entry was chosen; 0: none holds; -1 with an error. */
static int
search(Dispatcher *d, PyObject *entries, PyObject *tables, PyObject *const *slots, Choice *choice)
{
    Py_ssize_t n = PyTuple_GET_SIZE(tables), last = d->last / MOST_ENTRIES;
    for (Py_ssize_t i = -1; i < n; i++) {
        Py_ssize_t at = i < 0 ? last : i;
        if (at >= n || i == last) {
            continue;
        }
        Table *table = (Table *)PyTuple_GET_ITEM(tables, at);
        int preferred = at == last ? (int)(d->last % MOST_ENTRIES) : 0;
        int found = table_run(table, slots, preferred, choice->small, &choice->arguments);
        if (found < -1) {
            return -1;
        }
        if (found >= 0) {
            d->last = at * MOST_ENTRIES + found;
            choice->n = table->rows[found].n;
            choice->entry = (Entry *)Py_NewRef(PyTuple_GET_ITEM(entries, d->last));
            return 1;
        }
    }
    return 0;
}

static int
choose(Dispatcher *d, PyObject *const *slots, Choice *choice)
{
    PyObject *entries = Py_NewRef(d->entries), *tables = Py_NewRef(d->tables);
    int is_timed = (++d->calls & (TIMED_EVERY - 1)) == 0;
    double start = is_timed ? seconds_now() : 0.0;
    int found = search(d, entries, tables, slots, choice);
    if (found > 0) {
        Entry *entry = choice->entry;
        entry->hits++;
        entry->used = d->calls;
        d->hits++;
        if (is_timed) {
            entry->guard_seconds += seconds_now() - start;
            entry->timed++;
        }
    }
    Py_DECREF(entries);
    Py_DECREF(tables);
    return found;
}

/* ---- publishing */

/* Tables for the programs of `entries`; those of `former` serve again where nothing changed. */
static PyObject *
make_tables(PyObject *entries, PyObject *former)
{
    Py_ssize_t n = PyTuple_GET_SIZE(entries), count = (n + MOST_ENTRIES - 1) / MOST_ENTRIES;
    PyObject *tables = PyTuple_New(count);
    for (Py_ssize_t i = 0; tables != NULL && i < count; i++) {
        Py_ssize_t start = i * MOST_ENTRIES;
        Py_ssize_t size = n - start < MOST_ENTRIES ? n - start : MOST_ENTRIES;
        PyObject *programs = PyTuple_New(size), *table = NULL;
        Table *old = i < PyTuple_GET_SIZE(former) ? (Table *)PyTuple_GET_ITEM(former, i) : NULL;
        int same = old != NULL && old->n_entries == size;
        for (Py_ssize_t k = 0; programs != NULL && k < size; k++) {
            Program *program = ((Entry *)PyTuple_GET_ITEM(entries, start + k))->program;
            PyTuple_SET_ITEM(programs, k, Py_NewRef(program));
            same = same && PyTuple_GET_ITEM(old->programs, k) == (PyObject *)program;
        }
        if (programs != NULL) {
            table = same ? Py_NewRef(old) : make_table(programs);
            Py_DECREF(programs);
        }
        if (table == NULL) {
            Py_CLEAR(tables);
            break;
        }
        PyTuple_SET_ITEM(tables, i, table);
    }
    return tables;
}

/* Replace the entries; takes the reference to them, which may be NULL. */
static int
publish(Dispatcher *d, PyObject *entries)
{
    PyObject *tables = entries == NULL ? NULL : make_tables(entries, d->tables);
    if (tables == NULL) {
        Py_XDECREF(entries);
        return -1;
    }
    PyObject *old_entries = d->entries, *old_tables = d->tables;
    d->entries = entries, d->tables = tables;
    Py_DECREF(old_entries);
    Py_DECREF(old_tables);
    return 0;
}

#endif
