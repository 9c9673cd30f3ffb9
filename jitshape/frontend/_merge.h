/* Merging: the programs of several entries to the steps of one table.

In: programs.  Out: a Table's steps, in which equal steps of different programs are one.
Each program's steps are looked up in what is there, in order, from a cursor on: what is found moves
the cursor, what is not is put behind it.  So a program's steps keep their order, except that one
that runs no code may have come earlier for another program's sake.
Invariant: ambient readers come first, predicates last; a step comes behind those that load what it
reads; a getter, which may run code, comes behind every check that its program has before it. */
#ifndef JITSHAPE_MERGE_H
#define JITSHAPE_MERGE_H

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

#endif
