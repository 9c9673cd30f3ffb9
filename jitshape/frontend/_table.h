/* Tables: the guard programs of up to 64 entries, merged, so that a call is judged once for all.

In: programs.  Out: for a call, the set of entries whose guards hold, as bits.
Equal steps of several programs are one step, which knows its `users`.  A step that fails takes
them out of the set of entries that may serve the call; a step without users left is skipped, and
an empty set ends the evaluation.  So each object is read once, whatever the number of entries. */
#ifndef JITSHAPE_TABLE_H
#define JITSHAPE_TABLE_H

#include "_merge.h"

/* ---- judging a call */

static inline uint64_t
failed_step(const Step *s, uint64_t alive)
{
    if (PyErr_Occurred()) {
        PyErr_Clear();
    }
    return alive & ~s->users;
}

/* Of the entries `alive` those for which the steps from `first` to before `end` hold. */
static uint64_t
run_steps(Table *t, int first, int end, PyObject *const *slots, Registers *regs, uint64_t alive)
{
    for (Step *s = t->steps + first, *last = t->steps + end; s < last && alive; s++) {
        if ((s->users & alive) && !run_step(s, slots, regs)) {
            alive = failed_step(s, alive);
        }
    }
    return alive;
}

/* As run_steps, of some steps only. */
static uint64_t
run_listed(Table *t, const int32_t *steps, int n, PyObject *const *slots, Registers *regs,
           uint64_t alive)
{
    for (int i = 0; i < n && alive; i++) {
        Step *s = &t->steps[steps[i]];
        if ((s->users & alive) && !run_step(s, slots, regs)) {
            alive = failed_step(s, alive);
        }
    }
    return alive;
}

#include "_snapshot.h"

/* The plain steps, with the snapshot where it still stands. */
static uint64_t
judge_objects(Table *t, PyObject *const *slots, Registers *regs, uint64_t alive)
{
    Snapshot *snapshot = t->snapshot;
    Action *stale = NULL;
    if (snapshot != NULL) {
        snapshot->references++; /* a getter may run code that replaces it */
        stale = snapshot_compare(t, snapshot, slots, regs);
        if (stale == NULL) {
            alive &= snapshot->alive;
            alive = run_listed(t, snapshot->dynamic, snapshot->n_dynamic, slots, regs, alive);
            snapshot->hits += alive != 0;
            snapshot_release(snapshot);
            return alive;
        }
    }
    alive = run_steps(t, t->n_ambient, t->n_plain, slots, regs, alive);
    /* The run behind a compile says little about the calls to come. */
    if (alive && t->builds < MOST_BUILDS && ++t->runs > 1 && t->snapshot == snapshot) {
        snapshot_renew(t, stale, slots);
    }
    snapshot_release(snapshot);
    return alive;
}

/* The entries that hold for a call. */
static uint64_t
judge(Table *t, PyObject *const *slots, Registers *regs)
{
    uint64_t alive = t->n_entries == 64 ? ~0ull : (1ull << t->n_entries) - 1;
    alive = run_steps(t, 0, t->n_ambient, slots, regs, alive);
    alive = alive ? judge_objects(t, slots, regs, alive) : 0;
    if (alive & t->with_predicates) {
        for (int i = 0; i < t->n_entries; i++) {
            if (alive >> i & 1) {
                own_extracted(t->rows[i].extract, t->rows[i].n, regs);
            }
        }
        alive = run_steps(t, t->n_plain, t->n_steps, slots, regs, alive);
    }
    return alive;
}

#define INLINE_EXTRACT 64

/* The entry that serves a call: `preferred` if it holds, else the first; -1: none, -2: error.
   Its objects are put behind (*out)[0], in `small` if there is room: the caller frees it. */
static int
table_run(Table *t, PyObject *const *slots, int preferred, PyObject **small, PyObject ***out)
{
    PyObject **memory = t->scratch;
    t->scratch = NULL;
    if (memory == NULL) {
        memory = PyMem_Malloc(sizeof(PyObject *) * (t->n_objects + t->n_owned + t->n_numbers));
    }
    if (memory == NULL) {
        PyErr_NoMemory();
        return -2;
    }
    Registers regs;
    registers_start(&regs, memory, t->n_objects, t->n_owned);
    uint64_t alive = judge(t, slots, &regs);
    int entry = !alive ? -1 : alive >> preferred & 1 ? preferred : __builtin_ctzll(alive);
    if (entry >= 0) {
        Row *row = &t->rows[entry];
        *out = row->n <= INLINE_EXTRACT ? small : PyMem_Malloc((row->n + 1) * sizeof(PyObject *));
        if (*out == NULL || extract_objects(row->extract, row->n, &regs, *out + 1) < 0) {
            if (*out == NULL) {
                PyErr_NoMemory();
            } else if (*out != small) {
                PyMem_Free(*out);
            }
            entry = -2;
        }
    }
    registers_end(&regs);
    if (t->scratch == NULL) {
        t->scratch = memory;
    } else {
        PyMem_Free(memory);
    }
    return entry;
}

/* ---- the Python type */

static PyObject *
make_table(PyObject *programs)
{
    Py_ssize_t n = PyTuple_GET_SIZE(programs);
    if (n > MOST_ENTRIES) {
        PyErr_Format(PyExc_ValueError, "a table has room for %d programs", MOST_ENTRIES);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(programs, i), program_type)) {
            PyErr_SetString(PyExc_TypeError, "expected a tuple of programs");
            return NULL;
        }
    }
    Table *t = (Table *)table_type->tp_alloc(table_type, 0);
    if (t == NULL) {
        return NULL;
    }
    /* Register 0 exists in both files, so that unused operands are always in range. */
    t->n_objects = t->n_numbers = 1;
    t->n_entries = (int)n;
    t->programs = Py_NewRef(programs);
    if (merge(t, (Program **)&PyTuple_GET_ITEM(programs, 0)) < 0) {
        Py_CLEAR(t);
    }
    return (PyObject *)t;
}

static PyObject *
table_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *programs;
    return PyArg_ParseTuple(args, "O!", &PyTuple_Type, &programs) ? make_table(programs) : NULL;
}

static int
table_traverse(Table *t, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(t));
    Py_VISIT(t->programs);
    for (int i = 0; i < t->n_steps; i++) {
        Py_VISIT(t->steps[i].object);
    }
    return 0;
}

static int
table_clear(Table *t)
{
    int n = t->n_steps;
    t->n_steps = t->n_plain = t->n_ambient = t->n_entries = 0;
    Py_CLEAR(t->programs);
    snapshot_release(t->snapshot);
    t->snapshot = NULL;
    for (int i = 0; i < n; i++) {
        Py_CLEAR(t->steps[i].object);
        PyMem_Free(t->steps[i].spec);
        t->steps[i].spec = NULL;
    }
    return 0;
}

static void
table_dealloc(Table *t)
{
    PyTypeObject *type = Py_TYPE(t);
    PyObject_GC_UnTrack(t);
    table_clear(t);
    for (int i = 0; t->rows != NULL && i < MOST_ENTRIES; i++) {
        PyMem_Free(t->rows[i].extract);
    }
    PyMem_Free(t->rows);
    PyMem_Free(t->steps);
    PyMem_Free(t->scratch);
    type->tp_free(t);
    Py_DECREF(type);
}

static PyObject *
table_call(Table *t, PyObject *slots)
{
    if (!PyTuple_Check(slots) || PyTuple_GET_SIZE(slots) < t->n_slots) {
        return PyErr_Format(PyExc_TypeError, "expected a tuple of %d slots", t->n_slots);
    }
    PyObject *small[INLINE_EXTRACT + 1], **out;
    int entry = table_run(t, &PyTuple_GET_ITEM(slots, 0), 0, small, &out);
    if (entry < 0) {
        return entry == -1 ? Py_NewRef(Py_None) : NULL;
    }
    int n = t->rows[entry].n;
    PyObject *extracted = PyTuple_New(n);
    for (int i = 0; i < n; i++) {
        if (extracted == NULL) {
            Py_DECREF(out[i + 1]);
        } else {
            PyTuple_SET_ITEM(extracted, i, out[i + 1]);
        }
    }
    if (out != small) {
        PyMem_Free(out);
    }
    return extracted == NULL ? NULL : Py_BuildValue("iN", entry, extracted);
}

static PyObject *
table_snapshot(Table *t, PyObject *unused)
{
    Snapshot *snapshot = t->snapshot;
    if (snapshot == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("{sisisnsi}", "compared", snapshot->n_actions, "evaluated",
                         t->n_ambient + snapshot->n_dynamic + t->n_steps - t->n_plain, "hits",
                         snapshot->hits, "demotions", t->builds);
}

static PyMethodDef table_methods[] = {
    {"run", (PyCFunction)table_call, METH_O,
     "run(slots) -> (the first program that holds, tuple of extracted objects), or None"},
    {"snapshot", (PyCFunction)table_snapshot, METH_NOARGS,
     "snapshot() -> how many words are compared and steps evaluated in a call, or None"},
    {NULL},
};
static PyMemberDef table_members[] = {
    {"steps", T_INT, offsetof(Table, n_steps), READONLY},
    {"programs", T_OBJECT, offsetof(Table, programs), READONLY},
    {NULL},
};
static PyType_Slot table_slots[] = {
    {Py_tp_new, table_new},
    {Py_tp_traverse, table_traverse},
    {Py_tp_clear, table_clear},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_methods, table_methods},
    {Py_tp_members, table_members},
    {Py_tp_doc, "Table(programs)"},
    {0},
};
static PyType_Spec table_spec = {"jitshape.frontend._evalframe.Table", sizeof(Table), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, table_slots};

#endif
