/* Snapshots: what an evaluation of a table reads from memory, as a list of words.

In: a table and the slots of a call that some entry serves.  Out: a Snapshot.
While every word that the loads and checks read is what it was, so is their outcome for each entry
(`alive`): a later call compares the words and evaluates only what no word stands for (tensors,
numbers, sets, getters).
A dict is read through its version tag, a class through its own; both are never used twice.

A word that changes often is no longer trusted (`state`): its steps are run, and what they load is
compared with what they loaded. */
#ifndef JITSHAPE_SNAPSHOT_H
#define JITSHAPE_SNAPSHOT_H

#define FEW_HITS 8      /* a snapshot that lasts less was no use */
#define MOST_BUILDS 500 /* of these; then the program goes without */

#include "_words.h"

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
