/* Snapshots: what an evaluation of a table reads from memory, as a list of words.

In: a table and the slots of a call that some entry serves.  Out: a Snapshot.
While every word that the loads and checks read is what it was, so is their outcome for each entry
(`alive`): a later call compares the words and evaluates only what no word stands for (tensors,
numbers, sets, getters).
A dict is read through its version tag, a class through its own; both are never used twice.

Invariants: the words lie in the order of the loads, so that each lies in an object that the words
before it prove alive.  Where only a pointer was compared, the object may have died and another
have come to its place: its class, too, is compared before anything in it is, and an immutable
value, whose content no word tells, is held.  An object is certain to be the same if the program
holds it or a dict or class of the same version does.
A word that changes often is no longer trusted (`state`): its steps are run, and what they load is
compared with what they loaded. */
#ifndef JITSHAPE_SNAPSHOT_H
#define JITSHAPE_SNAPSHOT_H

#define FEW_HITS 8      /* a snapshot that lasts less was no use */
#define MOST_BUILDS 500 /* of these; then the program goes without */

enum StepState { S_STATIC, S_RUN, S_DYNAMIC };
enum Knowledge { K_CERTAIN = 1, K_LAYOUT = 2 }; /* the same object; a dict or class, by C's rules */
enum ActionKind { A_WORD, A_TAG, A_SLOT, A_LOAD, A_CHECK };

typedef struct {
    const void *address; /* A_WORD: of 64 bits, A_TAG: of 32 bits */
    uint64_t expected;   /* content; the object that the step loads; whether the check holds */
    int32_t step;
    int32_t kind;
} Action;

typedef struct {
    int32_t reg;
    PyObject *object; /* borrowed: alive where the actions hold */
} Preload;

struct Snapshot {
    Py_ssize_t references;
    Py_ssize_t hits;
    uint64_t alive; /* entries that no step failed which the actions stand for */
    int n_actions, n_preloads, n_dynamic, n_pins;
    Action *actions;
    Preload *preloads;
    int32_t *dynamic; /* steps to run behind the actions */
    PyObject **pins;  /* owned */
};

typedef struct {
    Table *table;
    PyObject *const *slots;
    Registers regs;
    PyObject **objects; /* of `regs` */
    Snapshot *made;
    const void **seen; /* hash table of addresses that have an action */
    size_t mask;
    int32_t step;
    char *is_static, *is_needed, *known; /* of each object register */
} Builder;

static void
snapshot_release(Snapshot *snapshot)
{
    if (snapshot == NULL || --snapshot->references > 0) {
        return;
    }
    for (int i = 0; i < snapshot->n_pins; i++) {
        Py_DECREF(snapshot->pins[i]);
    }
    PyMem_Free(snapshot->actions);
    PyMem_Free(snapshot->preloads);
    PyMem_Free(snapshot->dynamic);
    PyMem_Free(snapshot->pins);
    PyMem_Free(snapshot);
}

/* ---- building */

static void
add_action(Builder *b, int kind, const void *address, uint64_t expected)
{
    Action *action = &b->made->actions[b->made->n_actions++];
    *action = (Action){address, expected, b->step, kind};
}

static int
is_new(Builder *b, const void *address)
{
    size_t at = ((uintptr_t)address >> 3) * 0x9E3779B97F4A7C15ull >> 20 & b->mask;
    while (b->seen[at] != NULL) {
        if (b->seen[at] == address) {
            return 0;
        }
        at = (at + 1) & b->mask;
    }
    b->seen[at] = address;
    return 1;
}

static int
word(Builder *b, const void *address)
{
    if (is_new(b, address)) {
        add_action(b, A_WORD, address, *(const uint64_t *)address);
    }
    return 1;
}

/* The object's class; of an object that is certain only where Python can change it. */
static int
class_word(Builder *b, int reg)
{
    PyObject *object = b->objects[reg];
    int is_fixed = !PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE) &&
                   !PyModule_Check(object);
    return ((b->known[reg] & K_CERTAIN) && is_fixed) || word(b, &object->ob_type);
}

/* Before a field of a builtin's C struct is read: nothing else may have come to its place. */
static int
layout_word(Builder *b, int reg)
{
    return b->known[reg] || word(b, &b->objects[reg]->ob_type);
}

static int
type_tag(Builder *b, PyTypeObject *type)
{
    if (type->tp_version_tag == 0) {
        return 0;
    }
    if (is_new(b, &type->tp_version_tag)) {
        add_action(b, A_TAG, &type->tp_version_tag, type->tp_version_tag);
    }
    return 1;
}

static int
dict_words(Builder *b, int reg)
{
    PyObject *dict = b->objects[reg];
    if (!PyDict_Check(dict) || !version_is_sound(dict)) {
        return 0;
    }
    layout_word(b, reg);
    b->known[reg] |= K_CERTAIN; /* no version comes twice */
    return word(b, &((PyDictObject *)dict)->ma_version_tag);
}

static int
keys_words(Builder *b, int reg)
{
    PyObject *dict = b->objects[reg];
    int has_own_order = PyODict_Check(dict) && ((PyDictObject *)dict)->ma_used > 1;
    return !has_own_order && dict_words(b, reg);
}

static int
length_words(Builder *b, int reg)
{
    PyObject *object = b->objects[reg];
    if (PyTuple_Check(object) && (b->known[reg] & K_CERTAIN)) {
        return 1;
    }
    if (PyTuple_Check(object) || PyList_Check(object)) {
        return layout_word(b, reg) && word(b, &((PyVarObject *)object)->ob_size);
    }
    return dict_words(b, reg);
}

static int
item_words(Builder *b, Step *s)
{
    PyObject *base = b->objects[s->a];
    length_words(b, s->a);
    if (PyTuple_Check(base)) {
        b->known[s->dst] |= b->known[s->a] & K_CERTAIN;
        return (b->known[s->a] & K_CERTAIN) ||
               word(b, &((PyTupleObject *)base)->ob_item[s->number]);
    }
    PyListObject *list = (PyListObject *)base;
    return word(b, &list->ob_item) && word(b, &list->ob_item[s->number]);
}

static int
key_words(Builder *b, Step *s)
{
    b->known[s->dst] |= K_CERTAIN;
    return dict_words(b, s->a);
}

static int
field_words(Builder *b, Step *s)
{
    PyObject *object = b->objects[s->a];
    layout_word(b, s->a);
    if (s->number == F_CELL) {
        return word(b, &((PyCellObject *)object)->ob_ref);
    }
    PyFunctionObject *f = (PyFunctionObject *)object;
    PyObject **const addresses[] = {&f->func_code, &f->func_defaults, &f->func_kwdefaults,
                                    &f->func_closure, &f->func_globals};
    return word(b, addresses[s->number]);
}

static int
member_words(Builder *b, Step *s)
{
    PyObject *object = b->objects[s->a];
    return class_word(b, s->a) && type_tag(b, Py_TYPE(object)) &&
           word(b, member_address(s, object));
}

static int
instance_dict_words(Builder *b, Step *s)
{
    PyObject **pointer = _PyObject_GetDictPtr(b->objects[s->a]);
    b->known[s->dst] |= K_LAYOUT;
    return pointer != NULL && *pointer != NULL && layout_word(b, s->a) && word(b, pointer);
}

static int
type_words(Builder *b, Step *s)
{
    b->known[s->dst] |= K_LAYOUT;
    return class_word(b, s->a);
}

/* Of a class: what its bases hold under a name. */
static int
attribute_words(Builder *b, Step *s)
{
    if (s->op == OP_TYPE_ATTRIBUTE) {
        b->known[s->dst] |= K_CERTAIN;
    }
    return layout_word(b, s->a) && type_tag(b, (PyTypeObject *)b->objects[s->a]);
}

/* Hold a value whose content was compared. */
static int
pin(Builder *b, Step *s, PyObject *value)
{
    if (value == s->object) {
        return 1;
    }
    if (!PyUnicode_CheckExact(value) && !PyLong_CheckExact(value) && !PyFloat_CheckExact(value) &&
        !PyBytes_CheckExact(value) && !PyComplex_CheckExact(value)) {
        return 0;
    }
    b->made->pins[b->made->n_pins++] = Py_NewRef(value);
    return 1;
}

/* Actions that stand for what a step read; 0 where there are none. */
static int
step_words(Builder *b, Step *s)
{
    switch (s->op) {
    case OP_KEY: return key_words(b, s);
    case OP_MISSING: return dict_words(b, s->a);
    case OP_KEYS: return keys_words(b, s->a);
    case OP_LENGTH: return length_words(b, s->a);
    case OP_DICT: return instance_dict_words(b, s);
    case OP_ITEM: return item_words(b, s);
    case OP_TYPE: return type_words(b, s);
    case OP_TYPE_IS: return class_word(b, s->a);
    case OP_TYPE_ATTRIBUTE:
    case OP_NO_TYPE_ATTRIBUTE: return attribute_words(b, s);
    case OP_FIELD:
    case OP_NULL_FIELD: return field_words(b, s);
    case OP_MEMBER:
    case OP_NULL_MEMBER: return member_words(b, s);
    case OP_EQUALS: return pin(b, s, b->objects[s->a]);
    case OP_IS:
    case OP_SAME:
    case OP_DISTINCT: return 1;
    default: return 0;
    }
}

/* Actions for why a check of an attribute or item that is not there, or of a value that differs,
   failed; 0 where none tell. */
static int
failure_words(Builder *b, Step *s)
{
    PyObject *object = b->objects[s->a];
    switch (s->op) {
    case OP_KEY:
    case OP_MISSING: return PyDict_Check(object) ? dict_words(b, s->a) : class_word(b, s->a);
    case OP_KEYS: return PyDict_Check(object) ? keys_words(b, s->a) : class_word(b, s->a);
    case OP_LENGTH:
        return storage_length(object) < 0 ? class_word(b, s->a) : length_words(b, s->a);
    case OP_ITEM:
        return PyTuple_Check(object) || PyList_Check(object) ? length_words(b, s->a)
                                                             : class_word(b, s->a);
    case OP_TYPE_ATTRIBUTE:
    case OP_NO_TYPE_ATTRIBUTE:
        return PyType_Check(object) ? attribute_words(b, s) : class_word(b, s->a);
    case OP_FIELD:
    case OP_NULL_FIELD:
        return field_applies(object, (int)s->number) ? field_words(b, s) : class_word(b, s->a);
    case OP_MEMBER:
    case OP_NULL_MEMBER:
        return member_address(s, object) != NULL
                   ? member_words(b, s)
                   : class_word(b, s->a) && type_tag(b, Py_TYPE(object));
    case OP_TYPE_IS: return class_word(b, s->a);
    case OP_EQUALS:
        return Py_TYPE(object) != Py_TYPE(s->object) ? class_word(b, s->a) : pin(b, s, object);
    case OP_IS:
    case OP_SAME:
    case OP_DISTINCT: return 1;
    default: return 0;
    }
}

static void
need_operands(Builder *b, Step *s)
{
    if (reads_objects(s)) {
        b->is_needed[s->a] = b->is_needed[s->b] = 1;
    }
    for (Py_ssize_t i = 1; s->op == OP_PREDICATE && i < PyTuple_GET_SIZE(s->object); i++) {
        long from = PyLong_AsLong(PyTuple_GET_ITEM(s->object, i));
        if (from >= 0) {
            b->is_needed[from] = 1;
        }
    }
}

/* Whether what the step reads is no object of Python's that words could stand for. */
static int
is_volatile(Step *s)
{
    return !reads_objects(s) || (s->op >= OP_SIZE && s->op <= OP_LEN) || s->op == OP_GETTER ||
           s->op == OP_TENSOR || s->op == OP_NO_OVERLAP || s->op == OP_SHARES_STORAGE;
}

/* Whether the step holds, if that follows from actions (added here); else -1. */
static int
static_outcome(Builder *b, Step *s)
{
    if (s->op == OP_HELD) {
        b->known[s->dst] = K_CERTAIN;
        return run_step(s, b->slots, &b->regs);
    }
    if (s->state == S_DYNAMIC) {
        return -1;
    }
    if (s->op == OP_SLOT) {
        add_action(b, A_SLOT, NULL, (uintptr_t)b->slots[s->number]);
        return run_step(s, b->slots, &b->regs);
    }
    if (is_volatile(s) || !b->is_static[s->a] || (is_relation(s) && !b->is_static[s->b])) {
        return -1;
    }
    int holds = run_step(s, b->slots, &b->regs);
    if (s->state == S_STATIC) {
        return (holds ? step_words(b, s) : failure_words(b, s)) ? holds : -1;
    }
    need_operands(b, s);
    int is_load = loads_object(s);
    uint64_t expected = is_load ? (uintptr_t)b->objects[s->dst] : (uint64_t)holds;
    add_action(b, is_load ? A_LOAD : A_CHECK, NULL, expected);
    return holds;
}

static void
add_steps(Builder *b)
{
    Table *t = b->table;
    Snapshot *made = b->made;
    for (b->step = t->n_ambient; b->step < t->n_plain; b->step++) {
        Step *s = &t->steps[b->step];
        if (!(s->users & made->alive)) {
            continue;
        }
        int holds = static_outcome(b, s);
        if (holds < 0) {
            need_operands(b, s);
            made->dynamic[made->n_dynamic++] = b->step;
        } else if (!holds) {
            made->alive &= ~s->users;
        } else if (loads_object(s)) {
            b->is_static[s->dst] = 1;
        }
    }
    for (int i = t->n_plain; i < t->n_steps; i++) {
        need_operands(b, &t->steps[i]);
    }
}

static void
add_preloads(Builder *b)
{
    Table *t = b->table;
    Snapshot *made = b->made;
    for (int entry = 0; entry < t->n_entries; entry++) {
        Row *row = &t->rows[entry];
        for (int i = 0; (made->alive >> entry & 1) && i < row->n; i++) {
            if (row->extract[i] >= 0) {
                b->is_needed[row->extract[i]] = 1;
            }
        }
    }
    for (int reg = 0; reg < t->n_objects; reg++) {
        if (b->is_static[reg] && b->is_needed[reg]) {
            made->preloads[made->n_preloads++] = (Preload){reg, b->objects[reg]};
        }
    }
}

/* Memory of a size that only building shows, given back as far as it was not used. */
static void
trim(Snapshot *made)
{
    Action *actions = PyMem_Realloc(made->actions, (made->n_actions + 1) * sizeof(Action));
    made->actions = actions == NULL ? made->actions : actions;
    Preload *preloads = PyMem_Realloc(made->preloads, (made->n_preloads + 1) * sizeof(Preload));
    made->preloads = preloads == NULL ? made->preloads : preloads;
}

/* A snapshot of what a call with these slots reads, or NULL where memory lacks. */
static Snapshot *
snapshot_build(Table *t, PyObject *const *slots)
{
    size_t n = t->n_steps, buckets = 64;
    while (buckets < 8 * n) {
        buckets *= 2;
    }
    Builder b = {.table = t, .slots = slots, .mask = buckets - 1};
    Snapshot *made = b.made = PyMem_Calloc(1, sizeof(Snapshot));
    b.seen = PyMem_Calloc(buckets, sizeof(void *));
    b.is_static = PyMem_Calloc(3, t->n_objects);
    b.objects = PyMem_Calloc(t->n_objects + t->n_numbers, sizeof(PyObject *));
    if (made != NULL) {
        made->references = 1;
        made->alive = ~0ull;
        made->actions = PyMem_Malloc((4 * n + 1) * sizeof(Action)); /* four words at most a step */
        made->preloads = PyMem_Malloc(t->n_objects * sizeof(Preload));
        made->dynamic = PyMem_Malloc((n + 1) * sizeof(int32_t));
        made->pins = PyMem_Malloc((n + 1) * sizeof(PyObject *));
    }
    if (made == NULL || b.seen == NULL || b.is_static == NULL || b.objects == NULL ||
        made->actions == NULL || made->preloads == NULL || made->dynamic == NULL ||
        made->pins == NULL) {
        snapshot_release(made);
        made = NULL;
    } else {
        registers_start(&b.regs, b.objects, t->n_objects, 0);
        b.is_needed = b.is_static + t->n_objects;
        b.known = b.is_needed + t->n_objects;
        add_steps(&b);
        add_preloads(&b);
        trim(made);
    }
    PyMem_Free(b.seen);
    PyMem_Free(b.is_static);
    PyMem_Free(b.objects);
    return made;
}

/* ---- comparing */

static inline int
action_holds(Table *t, Action *a, PyObject *const *slots, Registers *regs)
{
    Step *s = &t->steps[a->step];
    switch (a->kind) {
    case A_WORD: return *(const uint64_t *)a->address == a->expected;
    case A_TAG: return *(const uint32_t *)a->address == a->expected;
    case A_SLOT: return (uintptr_t)slots[s->number] == a->expected;
    case A_LOAD: return (uintptr_t)load_object(s, regs->objects[s->a], regs) == a->expected;
    default: return check(s, regs) == (int)a->expected; /* A_CHECK */
    }
}

/* The first action that does not hold, or NULL; fills the registers that other steps need. */
static Action *
snapshot_compare(Table *t, Snapshot *snapshot, PyObject *const *slots, Registers *regs)
{
    for (int i = 0; i < snapshot->n_preloads; i++) {
        regs->objects[snapshot->preloads[i].reg] = snapshot->preloads[i].object;
    }
    for (Action *a = snapshot->actions, *end = a + snapshot->n_actions; a < end; a++) {
        if (!action_holds(t, a, slots, regs)) {
            return a;
        }
    }
    return NULL;
}

/* Trust the failed action's word less, for all steps that read the same dict or class. */
static void
demote(Table *t, Action *failed)
{
    Step *s = &t->steps[failed->step];
    if (failed->kind >= A_SLOT) {
        s->state = S_DYNAMIC;
        return;
    }
    s->state = S_RUN;
    for (int i = 0; s->owner != NULL && i < t->n_steps; i++) {
        if (t->steps[i].owner == s->owner && t->steps[i].state == S_STATIC) {
            t->steps[i].state = S_RUN;
        }
    }
}

/* After an evaluation that `failed` (or NULL: no snapshot yet) had made necessary. */
static void
snapshot_renew(Table *t, Action *failed, PyObject *const *slots)
{
    if (t->snapshot != NULL && failed != NULL && t->snapshot->hits < FEW_HITS) {
        demote(t, failed);
        t->builds++;
    }
    Snapshot *old = t->snapshot;
    t->snapshot = t->builds < MOST_BUILDS ? snapshot_build(t, slots) : NULL;
    snapshot_release(old);
}

#endif
