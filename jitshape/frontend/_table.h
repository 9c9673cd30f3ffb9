/* Tables: the guard programs of up to 64 entries, merged, so that a call is judged once for all.

In: programs.  Out: for a call, the set of entries whose guards hold, as bits.
Equal steps of several programs are one step, which knows its `users`.  A step that fails takes
them out of the set of entries that may serve the call; a step without users left is skipped, and
an empty set ends the evaluation.  So each object is read once, whatever the number of entries.
Invariants: ambient readers come first, predicates last; a step comes behind those that load what
it reads; a getter, which may run code, comes behind every check that its program has before it. */
#ifndef JITSHAPE_TABLE_H
#define JITSHAPE_TABLE_H

#define MOST_ENTRIES 64

typedef struct Snapshot Snapshot;

typedef struct {
    int32_t *extract; /* as of a Program */
    int n;
} Row;

typedef struct {
    PyObject_HEAD
    int n_entries, n_steps, n_ambient, n_plain, n_objects, n_numbers, n_owned, n_slots;
    uint64_t with_predicates; /* entries */
    Step *steps;              /* ambient, then plain ones, then predicates */
    Row *rows;                /* of each entry */
    PyObject *programs;       /* tuple */
    Snapshot *snapshot;
    int runs, builds;
    PyObject **scratch; /* registers; NULL while a call uses them */
} Table;

static PyTypeObject *table_type;

/* ---- merging */

typedef struct {
    Table *table;
    Step *steps;               /* in order of creation */
    int32_t *next, *place;     /* the order that they run in */
    int32_t *chain, *chained;  /* hash table: head of each chain, next in it */
    int32_t *objects, *numbers; /* registers of the program at hand -> those of the table */
    size_t mask;
    int n, first, cursor;
} Merge;

/* Whether equal operands make two steps do the same. */
static int
same_object(const Step *s, const Step *other)
{
    PyObject *a = s->object, *b = other->object;
    switch (s->op) {
    case OP_TENSOR: return same_spec(s->spec, other->spec);
    case OP_LOCAL_KEYS: return s->version == other->version;
    case OP_KEYS:
        if (PyTuple_GET_SIZE(a) != PyTuple_GET_SIZE(b)) {
            return 0;
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(a); i++) {
            if (!exactly_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) {
                return 0;
            }
        }
        return 1;
    case OP_AMBIENT:
        return PyTuple_GET_ITEM(a, 0) == PyTuple_GET_ITEM(b, 0) &&
               exactly_equal(PyTuple_GET_ITEM(a, 1), PyTuple_GET_ITEM(b, 1));
    case OP_HELD:
    case OP_IS:
    case OP_TYPE_IS:
    case OP_PREDICATE: return a == b;
    default: return exactly_equal(a, b);
    }
}

static size_t
step_hash(const Step *s)
{
    size_t hash = (size_t)s->op * 31 + (size_t)s->a * 1000003 + (size_t)s->b * 8191;
    hash ^= (size_t)s->number * 0x9E3779B97F4A7C15ull;
    if (s->op == OP_HELD || s->op == OP_IS || s->op == OP_TYPE_IS) {
        hash ^= (size_t)s->object >> 4;
    }
    return hash ^ hash >> 17;
}

static int
find_step(Merge *m, const Step *s)
{
    int at = m->chain[step_hash(s) & m->mask];
    for (; at >= 0; at = m->chained[at]) {
        const Step *other = &m->steps[at];
        if (other->op == s->op && other->a == s->a && other->b == s->b &&
            other->number == s->number && same_object(s, other)) {
            break;
        }
    }
    return at;
}

/* Put a new step behind the cursor. */
static int
insert_step(Merge *m, Step *s)
{
    int at = m->n++;
    if (loads_object(s)) {
        s->dst = m->table->n_objects++;
    } else if (gives_number(s)) {
        s->dst = m->table->n_numbers++;
    }
    m->steps[at] = *s;
    if (m->cursor < 0) {
        m->next[at] = m->first, m->first = at, m->place[at] = -1;
    } else {
        m->next[at] = m->next[m->cursor], m->next[m->cursor] = at;
        m->place[at] = m->place[m->cursor];
    }
    int32_t *head = &m->chain[step_hash(s) & m->mask];
    m->chained[at] = *head, *head = at;
    return at;
}

/* A predicate with its registers renamed: a new reference. */
static PyObject *
moved_predicate(Merge *m, PyObject *predicate)
{
    Py_ssize_t n = PyTuple_GET_SIZE(predicate);
    PyObject *moved = PyTuple_New(n);
    for (Py_ssize_t i = 0; moved != NULL && i < n; i++) {
        PyObject *item = PyTuple_GET_ITEM(predicate, i);
        long from = i == 0 ? 0 : PyLong_AsLong(item);
        item = i == 0 ? Py_NewRef(item)
                      : PyLong_FromLong(from >= 0 ? m->objects[from] : ~m->numbers[~from]);
        if (item == NULL) {
            Py_CLEAR(moved);
            break;
        }
        PyTuple_SET_ITEM(moved, i, item);
    }
    return moved;
}

static void
merge_step(Merge *m, const Step *from, uint64_t bit)
{
    Step s = {.op = from->op, .guard = from->guard, .number = from->number,
              .object = from->object, .spec = from->spec, .users = bit};
    if (s.op == OP_LOCAL_KEYS) {
        s.version = from->version;
    }
    if (reads_objects(from)) {
        s.a = m->objects[from->a], s.b = is_relation(from) ? m->objects[from->b] : 0;
    } else if (reads_numbers(from)) {
        s.a = m->numbers[from->a], s.b = from->op == OP_TRUE_ ? 0 : m->numbers[from->b];
    }
    int at = find_step(m, &s);
    int before = m->cursor < 0 ? -1 : m->place[m->cursor];
    if (at < 0 || (s.op == OP_GETTER && m->place[at] <= before)) {
        m->cursor = at = insert_step(m, &s);
    } else {
        m->steps[at].users |= bit;
        if (m->place[at] > before) {
            m->cursor = at;
        }
    }
    if (loads_object(&s)) {
        m->objects[from->dst] = m->steps[at].dst;
    } else if (gives_number(&s)) {
        m->numbers[from->dst] = m->steps[at].dst;
    }
}

/* Copy `extract` with its registers renamed. */
static int
merge_row(Merge *m, Program *p, Row *row)
{
    row->extract = PyMem_Malloc((p->n_extract + 1) * sizeof(int32_t));
    if (row->extract == NULL) {
        return -1;
    }
    row->n = p->n_extract;
    for (int i = 0; i < p->n_extract; i++) {
        int32_t from = p->extract[i];
        row->extract[i] = from >= 0 ? m->objects[from] : ~m->numbers[~from];
    }
    return 0;
}

/* The steps of entry number `entry`; its predicates go to `predicates`. */
static int
merge_program(Merge *m, Program *p, int entry, Step *predicates, int *n_predicates)
{
    uint64_t bit = 1ull << entry;
    int place = 0;
    for (int at = m->first; at >= 0; at = m->next[at]) {
        m->place[at] = place++;
    }
    m->cursor = -1;
    memset(m->objects, 0, p->n_objects * sizeof(int32_t));
    memset(m->numbers, 0, p->n_numbers * sizeof(int32_t));
    for (int i = 0; i < p->n_plain; i++) {
        merge_step(m, &p->steps[i], bit);
    }
    if (merge_row(m, p, &m->table->rows[entry]) < 0) {
        return -1;
    }
    for (int i = p->n_plain; i < p->n_steps; i++) {
        Step s = {.op = OP_PREDICATE, .guard = p->steps[i].guard, .users = bit};
        s.object = moved_predicate(m, p->steps[i].object);
        if (s.object == NULL) {
            return -1;
        }
        m->table->with_predicates |= bit;
        predicates[(*n_predicates)++] = s;
    }
    if (p->n_slots > m->table->n_slots) {
        m->table->n_slots = p->n_slots;
    }
    return 0;
}

/* Lay the merged steps out in order; they own what they hold from here on. */
static int
lay_out(Merge *m, const Step *predicates, int n_predicates)
{
    Table *t = m->table;
    for (int at = m->first; at >= 0; at = m->next[at]) {
        Step *s = &t->steps[t->n_steps++];
        *s = m->steps[at];
        Py_XINCREF(s->object);
        if (s->spec != NULL) {
            size_t bytes = sizeof(TensorSpec) + 2 * (size_t)s->spec->rank * sizeof(int64_t);
            TensorSpec *spec = PyMem_Malloc(bytes);
            s->spec = spec == NULL ? NULL : memcpy(spec, s->spec, bytes);
            if (spec == NULL) {
                return -1;
            }
        }
        t->n_ambient += is_ambient(s);
        t->n_owned += s->op == OP_GETTER;
    }
    t->n_plain = t->n_steps;
    for (int i = 0; i < n_predicates; i++) {
        t->steps[t->n_steps++] = predicates[i];
    }
    for (int i = 0; i < t->n_entries; i++) {
        t->n_owned += t->with_predicates != 0 ? t->rows[i].n : 0;
    }
    return 0;
}

static int
merge(Table *t, Program **programs)
{
    size_t n = 1, n_objects = 1, n_numbers = 1, buckets = 64;
    for (int i = 0; i < t->n_entries; i++) {
        Program *p = programs[i];
        n += p->n_steps;
        n_objects = (size_t)p->n_objects > n_objects ? (size_t)p->n_objects : n_objects;
        n_numbers = (size_t)p->n_numbers > n_numbers ? (size_t)p->n_numbers : n_numbers;
    }
    while (buckets < n) {
        buckets *= 2;
    }
    Merge m = {.table = t, .mask = buckets - 1, .first = -1};
    Step *predicates = PyMem_Calloc(n, sizeof(Step));
    int n_predicates = 0, result = -1;
    m.steps = PyMem_Malloc(n * sizeof(Step));
    m.next = PyMem_Malloc((3 * n + buckets + n_objects + n_numbers) * sizeof(int32_t));
    t->steps = PyMem_Calloc(n, sizeof(Step));
    t->rows = PyMem_Calloc(MOST_ENTRIES, sizeof(Row));
    if (predicates != NULL && m.steps != NULL && m.next != NULL && t->steps != NULL &&
        t->rows != NULL) {
        m.place = m.next + n, m.chained = m.place + n, m.chain = m.chained + n;
        m.objects = m.chain + buckets, m.numbers = m.objects + n_objects;
        memset(m.chain, -1, buckets * sizeof(int32_t));
        result = 0;
        for (int i = 0; i < t->n_entries && result == 0; i++) {
            result = merge_program(&m, programs[i], i, predicates, &n_predicates);
        }
        int kept = result == 0 ? lay_out(&m, predicates, n_predicates) : -1;
        for (int i = t->n_steps - t->n_plain; kept < 0 && i < n_predicates; i++) {
            Py_DECREF(predicates[i].object);
        }
        result = kept;
    }
    PyMem_Free(predicates);
    PyMem_Free(m.steps);
    PyMem_Free(m.next);
    if (result < 0 && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    return result;
}

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
