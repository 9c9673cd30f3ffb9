/* Steps: the instructions of guard programs, each a load, a computation or a check.

In: a step and the registers.  Out: 1, or 0 where the step fails.
Registers hold borrowed references: no Python code runs between a load and its last use (ambient
readers, which may, come before all loads), and objects that only the evaluation holds are kept in
`owned`.  Every load checks what it relies on, so that a wrong program can miss but not crash.
Predicates (Python functions of numbers, for what has no op) come last, when what will be extracted
is owned. */
#ifndef JITSHAPE_STEPS_H
#define JITSHAPE_STEPS_H

/* clang-format off */
#define OPS(X)                                                                                   \
    X(SLOT) X(HELD) X(KEY) X(DICT) X(ITEM) X(TYPE) X(TYPE_ATTRIBUTE) X(FIELD) X(MEMBER)           \
    X(GETTER) X(SIZE) X(STRIDE) X(OFFSET) X(INT) X(LEN) X(CONST) X(ADD) X(MUL) X(FLOORDIV)        \
    X(MOD) X(MAX) X(MIN) X(EQ) X(NE) X(LT) X(LE) X(GT) X(GE) X(AND) X(OR) X(TRUE_)                \
    X(TYPE_IS) X(IS) X(EQUALS) X(LENGTH) X(KEYS) X(MISSING) X(NO_TYPE_ATTRIBUTE) X(NULL_FIELD)    \
    X(NULL_MEMBER) X(METHOD) X(TENSOR) X(SAME) X(DISTINCT) X(SHARES_STORAGE) X(NO_OVERLAP)        \
    X(AMBIENT) X(AUTOGRAD_STATE) X(LOCAL_KEYS) X(AUTOCAST) X(DEFAULT_DTYPE)        \
    X(STACKS) X(PREDICATE)
/* clang-format on */
enum Op {
#define X(name) OP_##name,
    OPS(X)
#undef X
};

enum Field { /* nine of functions, of which classes have the names; of cells; methods; classes */
    F_CODE, F_DEFAULTS, F_KWDEFAULTS, F_CLOSURE, F_GLOBALS, F_NAME, F_QUALNAME, F_DOC, F_MODULE,
    F_CELL, F_SELF, F_MRO, F_BASES, N_FIELDS
};
static const char *const FIELD_NAMES[] = {
    "__code__",     "__defaults__", "__kwdefaults__", "__closure__", "__globals__", "__name__",
    "__qualname__", "__doc__",      "__module__",     "cell_contents", "__self__",
    "__mro__",      "__bases__"};

typedef struct {
    int32_t op, dst, a, b;
    int32_t guard;
    int32_t state;    /* how far a snapshot trusts it, see _snapshot.h */
    uint64_t users;   /* the entries of a table that it is a step of */
    int64_t number;   /* index, constant, or hash of a key */
    PyObject *object; /* owned */
    TensorSpec *spec; /* owned */
    /* what the last evaluation found, valid while owner and version stay the same */
    void *owner;
    uint64_t version;
    PyObject *found;
} Step;

typedef struct {
    PyObject **objects;
    int64_t *numbers;
    PyObject **owned;
    int n_owned;
    PyObject *viewed; /* the tensor that `view` was read from last */
    TensorView view;
} Registers;

static inline void
registers_start(Registers *r, PyObject **memory, int n_objects, int n_owned)
{
    r->objects = memory;
    r->owned = memory + n_objects;
    r->numbers = (int64_t *)(r->owned + n_owned);
    r->n_owned = 0;
    r->viewed = NULL;
}

static inline void
registers_end(Registers *r)
{
    while (r->n_owned > 0) {
        Py_DECREF(r->owned[--r->n_owned]);
    }
}

/* The metadata of a tensor, read once for all steps that ask in turn; NULL: it is none. */
static inline const TensorView *
view_of(Registers *r, PyObject *object)
{
    if (r->viewed != object) {
        r->viewed = read_tensor(object, &r->view) ? object : NULL;
    }
    return r->viewed == NULL ? NULL : &r->view;
}

#include "_objects.h"

static int
ambient_matches(PyObject *pair)
{
    PyObject *now = PyObject_CallNoArgs(PyTuple_GET_ITEM(pair, 0));
    if (now == NULL) {
        return 0;
    }
    PyObject *expected = PyTuple_GET_ITEM(pair, 1);
    int same = now == expected ||
               (Py_IS_TYPE(now, Py_TYPE(expected)) &&
                PyObject_RichCompareBool(now, expected, Py_EQ) == 1);
    Py_DECREF(now);
    return same;
}

/* object: (function, register...): object registers, and ~ of number registers */
static int
predicate_holds(PyObject *object, Registers *regs)
{
    Py_ssize_t n = PyTuple_GET_SIZE(object) - 1;
    PyObject *args = PyTuple_New(n);
    for (Py_ssize_t i = 0; args != NULL && i < n; i++) {
        long from = PyLong_AsLong(PyTuple_GET_ITEM(object, i + 1));
        PyObject *arg = from >= 0 ? Py_NewRef(regs->objects[from])
                                  : PyLong_FromLongLong(regs->numbers[~from]);
        if (arg == NULL) {
            Py_CLEAR(args);
            break;
        }
        PyTuple_SET_ITEM(args, i, arg);
    }
    PyObject *answer = args == NULL ? NULL : PyObject_Call(PyTuple_GET_ITEM(object, 0), args, NULL);
    int holds = answer == Py_True;
    Py_XDECREF(args);
    Py_XDECREF(answer);
    return holds;
}

static inline int
floor_division(int64_t a, int64_t b, int64_t *quotient, int64_t *rest)
{
    if (b == 0 || (b == -1 && a == INT64_MIN)) {
        return 0;
    }
    *quotient = a / b, *rest = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1, *rest += b;
    }
    return 1;
}

#define WORD_END ((int64_t)1 << 62) /* WORD in ir/words.py */

static int
load_number(Step *s, PyObject *object, Registers *regs)
{
    const TensorView *view;
    int64_t *out = &regs->numbers[s->dst];
    switch (s->op) {
    case OP_INT: {
        int overflow;
        if (!PyLong_Check(object)) {
            return 0;
        }
        *out = PyLong_AsLongLongAndOverflow(object, &overflow);
        return !overflow && *out >= -WORD_END && *out < WORD_END;
    }
    case OP_LEN:
        return (*out = storage_length(object)) >= 0;
    case OP_OFFSET:
        if ((view = view_of(regs, object)) == NULL) {
            return 0;
        }
        *out = view->offset;
        return 1;
    default:
        if ((view = view_of(regs, object)) == NULL || s->number >= view->rank) {
            return 0;
        }
        *out = s->op == OP_SIZE ? view->sizes[s->number] : view->strides[s->number];
        return 1;
    }
}

static PyObject *
load_object(Step *s, PyObject *base, Registers *regs)
{
    switch (s->op) {
    case OP_KEY:
        return PyDict_Check(base) ? dict_lookup(s, base) : NULL;
    case OP_DICT:
        return instance_dict(base);
    case OP_ITEM:
        if (s->number >= 0 && PyTuple_Check(base) && s->number < PyTuple_GET_SIZE(base)) {
            return PyTuple_GET_ITEM(base, s->number);
        }
        if (s->number >= 0 && PyList_Check(base) && s->number < PyList_GET_SIZE(base)) {
            return PyList_GET_ITEM(base, s->number);
        }
        return NULL;
    case OP_TYPE:
        return (PyObject *)Py_TYPE(base);
    case OP_TYPE_ATTRIBUTE:
        return PyType_Check(base) ? type_lookup(s, (PyTypeObject *)base) : NULL;
    case OP_FIELD:
        return read_field(base, (int)s->number);
    case OP_MEMBER: {
        PyObject **address = member_address(s, base);
        return address == NULL ? NULL : *address;
    }
    default: { /* OP_GETTER */
        PyObject *value = read_getter(s, base);
        regs->viewed = NULL; /* it may have run code */
        if (value != NULL) {
            regs->owned[regs->n_owned++] = value;
        }
        return value;
    }
    }
}

static int
compute(Step *s, int64_t *r)
{
    int64_t a = r[s->a], b = r[s->b], rest, *out = &r[s->dst];
    switch (s->op) {
    case OP_CONST: *out = s->number; return 1;
    case OP_ADD: return !__builtin_add_overflow(a, b, out);
    case OP_MUL: return !__builtin_mul_overflow(a, b, out);
    case OP_FLOORDIV: return floor_division(a, b, out, &rest);
    case OP_MOD: return floor_division(a, b, &rest, out);
    case OP_MAX: *out = a > b ? a : b; return 1;
    case OP_MIN: *out = a < b ? a : b; return 1;
    case OP_EQ: *out = a == b; return 1;
    case OP_NE: *out = a != b; return 1;
    case OP_LT: *out = a < b; return 1;
    case OP_LE: *out = a <= b; return 1;
    case OP_GT: *out = a > b; return 1;
    case OP_GE: *out = a >= b; return 1;
    case OP_AND: *out = a && b; return 1;
    case OP_OR: *out = a || b; return 1;
    default: return a != 0; /* OP_TRUE_ */
    }
}

static int
check(Step *s, Registers *regs)
{
    PyObject **r = regs->objects, *object = r[s->a];
    switch (s->op) {
    case OP_TYPE_IS: return (PyObject *)Py_TYPE(object) == s->object;
    case OP_IS: return object == s->object;
    case OP_EQUALS: return exactly_equal(object, s->object);
    case OP_LENGTH: return storage_length(object) == s->number;
    case OP_KEYS: return keys_match(s, object);
    case OP_MISSING: return PyDict_Check(object) && dict_lookup(s, object) == NULL;
    case OP_NO_TYPE_ATTRIBUTE:
        return PyType_Check(object) && type_lookup(s, (PyTypeObject *)object) == NULL;
    case OP_NULL_FIELD: {
        PyObject **address = field_address(object, (int)s->number);
        return address != NULL && *address == NULL;
    }
    case OP_NULL_MEMBER: {
        PyObject **address = member_address(s, object);
        return address != NULL && *address == NULL;
    }
    case OP_METHOD: return same_method(object, s->object);
    case OP_TENSOR:
        return Py_TYPE(object) == s->spec->type && view_of(regs, object) != NULL &&
               view_matches(&regs->view, s->spec);
    case OP_SAME: return object == r[s->b];
    case OP_DISTINCT: return object != r[s->b];
    case OP_SHARES_STORAGE: return tensors_share_storage(object, r[s->b]);
    default: /* OP_NO_OVERLAP */
        return tensors_overlap(object, s->number >> 8, r[s->b], s->number & 255) == 0;
    }
}

static int
check_ambient(Step *s)
{
    switch (s->op) {
    case OP_AMBIENT:
        return ambient_matches(s->object);
    case OP_AUTOGRAD_STATE: /* number: mask << 8 | expected */
        return autograd_state != NULL &&
               (autograd_state()[autograd_byte] & (s->number >> 8)) == (s->number & 255);
    case OP_AUTOCAST:
        return autocast_enabled != NULL && autocast_word() == (uint32_t)s->number;
    case OP_DEFAULT_DTYPE:
        return default_dtype != NULL && default_dtype() == (uint16_t)s->number;
    case OP_STACKS:
        return function_modes != NULL && stack_word() == s->number;
    default: { /* OP_LOCAL_KEYS: version and number hold the two expected sets */
        const uint64_t *keys = thread_keys();
        return keys != NULL && keys[0] == s->version && keys[1] == (uint64_t)s->number;
    }
    }
}

static inline int
run_step(Step *s, PyObject *const *slots, Registers *regs)
{
    PyObject **r = regs->objects;
    switch (s->op) {
    case OP_SLOT:
        r[s->dst] = slots[s->number];
        return 1;
    case OP_HELD:
        r[s->dst] = s->object;
        return 1;
    case OP_KEY ... OP_GETTER:
        return (r[s->dst] = load_object(s, r[s->a], regs)) != NULL;
    case OP_SIZE ... OP_LEN:
        return load_number(s, r[s->a], regs);
    case OP_CONST ... OP_TRUE_:
        return compute(s, regs->numbers);
    case OP_TYPE_IS ... OP_NO_OVERLAP:
        return check(s, regs);
    case OP_PREDICATE:
        return predicate_holds(s->object, regs);
    default:
        return check_ambient(s);
    }
}

/* ---- what kind a step is */

static inline int
is_ambient(const Step *s)
{
    return s->op >= OP_AMBIENT && s->op <= OP_STACKS;
}

static inline int
loads_object(const Step *s)
{
    return s->op <= OP_GETTER;
}

/* Whether `dst` is a number register. */
static inline int
gives_number(const Step *s)
{
    return s->op >= OP_SIZE && s->op < OP_TRUE_;
}

static inline int
reads_numbers(const Step *s)
{
    return s->op >= OP_ADD && s->op <= OP_TRUE_;
}

/* Whether `a` (and, of a relation, `b`) are object registers. */
static inline int
reads_objects(const Step *s)
{
    return (s->op >= OP_KEY && s->op <= OP_LEN) || (s->op >= OP_TYPE_IS && s->op <= OP_NO_OVERLAP);
}

static inline int
is_relation(const Step *s)
{
    return s->op >= OP_SAME && s->op <= OP_NO_OVERLAP;
}

#endif
