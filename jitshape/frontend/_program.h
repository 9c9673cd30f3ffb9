/* Guard programs: straight-line register code that checks one call and loads what it needs.

In: the slots of a call.  Out: the index of the first guard that fails, or the extracted objects.
Registers hold borrowed references: no Python code runs between a load and its last use (ambient
readers, which may, come before all loads), and objects that only the program holds are kept in
`owned`.  Python writes the code (guards.py); every load checks what it relies on, so that a wrong
program can miss but not crash.  Predicates (Python functions of numbers, for what has no op) come
last, when what will be extracted is owned. */
#ifndef JITSHAPE_PROGRAM_H
#define JITSHAPE_PROGRAM_H

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#if PY_VERSION_HEX >= 0x030D0000
#define DICT_VERSION(d) (((PyDictObject *)(d))->ma_version_tag >> 12)
#elif PY_VERSION_HEX >= 0x030C0000
#define DICT_VERSION(d) (((PyDictObject *)(d))->ma_version_tag >> 8)
#else
#define DICT_VERSION(d) (((PyDictObject *)(d))->ma_version_tag)
#endif
PyAPI_FUNC(PyObject *) _PyDict_GetItem_KnownHash(PyObject *, PyObject *, Py_hash_t);
PyAPI_FUNC(PyObject *) _PyType_Lookup(PyTypeObject *, PyObject *);
PyAPI_FUNC(PyObject **) _PyObject_GetDictPtr(PyObject *);

/* clang-format off */
#define OPS(X)                                                                                   \
    X(SLOT) X(HELD) X(KEY) X(DICT) X(ITEM) X(TYPE) X(TYPE_ATTRIBUTE) X(FIELD) X(MEMBER)           \
    X(GETTER) X(SIZE) X(STRIDE) X(OFFSET) X(INT) X(LEN) X(CONST) X(ADD) X(MUL) X(FLOORDIV)        \
    X(MOD) X(MAX) X(MIN) X(EQ) X(NE) X(LT) X(LE) X(GT) X(GE) X(AND) X(OR) X(TRUE_)                \
    X(TYPE_IS) X(IS) X(EQUALS) X(LENGTH) X(KEYS) X(MISSING) X(NO_TYPE_ATTRIBUTE) X(NULL_FIELD)    \
    X(NULL_MEMBER) X(TENSOR) X(SAME) X(DISTINCT) X(SHARES_STORAGE) X(NO_OVERLAP) X(AMBIENT)       \
    X(AUTOGRAD_STATE) X(LOCAL_KEYS) X(AUTOCAST) X(DEFAULT_DTYPE) X(PREDICATE)
/* clang-format on */
enum Op {
#define X(name) OP_##name,
    OPS(X)
#undef X
};

enum Field { F_CODE, F_DEFAULTS, F_KWDEFAULTS, F_CLOSURE, F_GLOBALS, F_CELL };
static const char *const FIELD_NAMES[] = {"__code__",    "__defaults__", "__kwdefaults__",
                                          "__closure__", "__globals__",  "cell_contents"};

typedef struct {
    uint16_t op, dst, a, b;
    int32_t guard;
    int32_t state;    /* how far a snapshot trusts it, see _snapshot.h */
    int64_t number;   /* index, constant, or hash of a key */
    PyObject *object; /* owned */
    TensorSpec *spec; /* owned */
    /* what the last evaluation found, valid while owner and version stay the same */
    void *owner;
    uint64_t version;
    PyObject *found;
} Step;

typedef struct Snapshot Snapshot;

typedef struct {
    PyObject_HEAD
    int n_steps, n_objects, n_numbers, n_extract, n_owned, n_slots;
    int n_plain; /* steps before the first predicate */
    Step *steps;
    int32_t *extract; /* object register, or ~number register to box */
    Snapshot *snapshot;
    int runs, builds;
} Program;

typedef struct {
    PyObject **objects;
    int64_t *numbers;
    PyObject **owned;
    int n_owned;
} Registers;

static int trust_versions_of_split_dicts = 1; /* 3.13.0 misses writes to inline values */

static inline int
version_is_sound(PyObject *dict)
{
    return trust_versions_of_split_dicts || ((PyDictObject *)dict)->ma_values == NULL;
}

static PyObject *
dict_lookup(Step *s, PyObject *dict)
{
    uint64_t version = DICT_VERSION(dict);
    if (s->owner == dict && s->version == version && version_is_sound(dict)) {
        return s->found;
    }
    s->found = _PyDict_GetItem_KnownHash(dict, s->object, (Py_hash_t)s->number);
    s->owner = dict;
    s->version = DICT_VERSION(dict);
    return s->found;
}

static PyObject *
type_lookup(Step *s, PyTypeObject *type)
{
    uint64_t version = type->tp_version_tag;
    if (s->owner == type && version != 0 && s->version == version) {
        return s->found;
    }
    s->found = _PyType_Lookup(type, s->object);
    s->owner = type;
    s->version = type->tp_version_tag;
    return s->found;
}

static PyObject *
instance_dict(PyObject *object)
{
    PyObject **pointer = _PyObject_GetDictPtr(object);
    if (pointer != NULL && *pointer != NULL) {
        return *pointer;
    }
    /* Making the dict allocates: a collection here could run finalisers. */
    int enabled = PyGC_Disable();
    PyObject *dict = PyObject_GenericGetDict(object, NULL);
    if (enabled) {
        PyGC_Enable();
    }
    if (dict == NULL) {
        return NULL;
    }
    Py_DECREF(dict);
    return dict;
}

static PyObject *
read_field(PyObject *object, int field)
{
    if (field == F_CELL) {
        return PyCell_Check(object) ? PyCell_GET(object) : NULL;
    }
    if (!PyFunction_Check(object)) {
        return NULL;
    }
    PyFunctionObject *f = (PyFunctionObject *)object;
    PyObject *const values[] = {f->func_code, f->func_defaults, f->func_kwdefaults,
                                f->func_closure, f->func_globals};
    return values[field];
}

static int
field_applies(PyObject *object, int field)
{
    return field == F_CELL ? PyCell_Check(object) : PyFunction_Check(object);
}

/* Address of an object member (a `__slots__` entry or a C struct's own field), or NULL. */
static PyObject **
member_address(Step *s, PyObject *object)
{
    PyObject *descriptor = type_lookup(s, Py_TYPE(object));
    if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) {
        return NULL;
    }
    PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
    if (member->type != T_OBJECT_EX && member->type != T_OBJECT) {
        return NULL;
    }
    return (PyObject **)((char *)object + member->offset);
}

static PyObject *
read_getter(Step *s, PyObject *object)
{
    PyObject *descriptor = type_lookup(s, Py_TYPE(object));
    if (descriptor == NULL || !Py_IS_TYPE(descriptor, &PyGetSetDescr_Type)) {
        return NULL;
    }
    PyGetSetDef *def = ((PyGetSetDescrObject *)descriptor)->d_getset;
    return def->get == NULL ? NULL : def->get(object, def->closure);
}

static int64_t
storage_length(PyObject *object)
{
    if (PyTuple_Check(object)) {
        return PyTuple_GET_SIZE(object);
    }
    if (PyList_Check(object)) {
        return PyList_GET_SIZE(object);
    }
    if (PyDict_Check(object)) {
        return ((PyDictObject *)object)->ma_used;
    }
    return PyAnySet_Check(object) ? PySet_GET_SIZE(object) : -1;
}

/* Sets of strings, ints, bytes and None: `b` holds only such, so none other of `a` is equal. */
static int
same_elements(PyObject *a, PyObject *b)
{
    PyObject *element, *iterator;
    int same = PySet_GET_SIZE(a) == PySet_GET_SIZE(b);
    if (!same || (iterator = PyObject_GetIter(a)) == NULL) {
        PyErr_Clear();
        return 0;
    }
    while (same && (element = PyIter_Next(iterator)) != NULL) {
        same = (PyUnicode_CheckExact(element) || PyLong_CheckExact(element) ||
                PyBytes_CheckExact(element) || element == Py_None) &&
               PySet_Contains(b, element) == 1;
        Py_DECREF(element);
    }
    Py_DECREF(iterator);
    return same;
}

/* Exact type and value of immutable builtins, sets of them; floats by bits.  Runs no user code. */
static int
exactly_equal(PyObject *a, PyObject *b)
{
    if (a == b) {
        return 1;
    }
    if (Py_TYPE(a) != Py_TYPE(b)) {
        return 0;
    }
    if (PyFloat_CheckExact(a)) {
        double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (PyComplex_CheckExact(a)) {
        Py_complex x = PyComplex_AsCComplex(a), y = PyComplex_AsCComplex(b);
        return memcmp(&x, &y, sizeof x) == 0;
    }
    if (PyUnicode_CheckExact(a) || PyLong_CheckExact(a) || PyBytes_CheckExact(a)) {
        return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
    }
    return PySet_CheckExact(a) && same_elements(a, b);
}

static int
ordered_keys_match(PyObject *dict, PyObject *keys)
{
    PyObject *iterator = PyODict_Type.tp_iter(dict);
    int ok = iterator != NULL;
    for (Py_ssize_t i = 0; ok && i < PyTuple_GET_SIZE(keys); i++) {
        PyObject *key = PyIter_Next(iterator);
        ok = key != NULL && exactly_equal(key, PyTuple_GET_ITEM(keys, i));
        Py_XDECREF(key);
    }
    Py_XDECREF(iterator);
    return ok;
}

static int
keys_match(Step *s, PyObject *dict)
{
    if (!PyDict_Check(dict)) {
        return 0;
    }
    uint64_t version = DICT_VERSION(dict);
    int ordered = PyODict_Check(dict);
    if (!ordered && s->owner == dict && s->version == version && version_is_sound(dict)) {
        return 1;
    }
    if (((PyDictObject *)dict)->ma_used != PyTuple_GET_SIZE(s->object)) {
        return 0;
    }
    if (ordered) { /* its order is not its dict's */
        return ordered_keys_match(dict, s->object);
    }
    Py_ssize_t position = 0;
    PyObject *key;
    for (Py_ssize_t i = 0; PyDict_Next(dict, &position, &key, NULL); i++) {
        if (!exactly_equal(key, PyTuple_GET_ITEM(s->object, i))) {
            return 0;
        }
    }
    s->owner = dict;
    s->version = version;
    return 1;
}

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

static int
load_number(Step *s, PyObject *object, int64_t *out)
{
    TensorView view;
    switch (s->op) {
    case OP_INT: {
        int overflow;
        if (!PyLong_Check(object)) {
            return 0;
        }
        *out = PyLong_AsLongLongAndOverflow(object, &overflow);
        return !overflow;
    }
    case OP_LEN:
        return (*out = storage_length(object)) >= 0;
    case OP_OFFSET:
        if (!read_tensor(object, &view)) {
            return 0;
        }
        *out = view.offset;
        return 1;
    default:
        if (!read_tensor(object, &view) || s->number >= view.rank) {
            return 0;
        }
        *out = s->op == OP_SIZE ? view.sizes[s->number] : view.strides[s->number];
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
check(Step *s, PyObject **r)
{
    PyObject *object = r[s->a];
    switch (s->op) {
    case OP_TYPE_IS: return (PyObject *)Py_TYPE(object) == s->object;
    case OP_IS: return object == s->object;
    case OP_EQUALS: return exactly_equal(object, s->object);
    case OP_LENGTH: return storage_length(object) == s->number;
    case OP_KEYS: return keys_match(s, object);
    case OP_MISSING: return PyDict_Check(object) && dict_lookup(s, object) == NULL;
    case OP_NO_TYPE_ATTRIBUTE:
        return PyType_Check(object) && type_lookup(s, (PyTypeObject *)object) == NULL;
    case OP_NULL_FIELD:
        return field_applies(object, (int)s->number) && !read_field(object, (int)s->number);
    case OP_NULL_MEMBER: {
        PyObject **address = member_address(s, object);
        return address != NULL && *address == NULL;
    }
    case OP_TENSOR: return tensor_matches(object, s->spec);
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
    default: { /* OP_LOCAL_KEYS: version and number hold the two expected sets */
        const uint64_t *keys = thread_keys();
        return keys != NULL && keys[0] == s->version && keys[1] == (uint64_t)s->number;
    }
    }
}

static void
own_extracted(Program *p, Registers *regs)
{
    for (int i = 0; i < p->n_extract; i++) {
        if (p->extract[i] >= 0) {
            regs->owned[regs->n_owned++] = Py_NewRef(regs->objects[p->extract[i]]);
        }
    }
}

static inline int
run_step(Program *p, Step *s, PyObject *const *slots, Registers *regs)
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
        return load_number(s, r[s->a], &regs->numbers[s->dst]);
    case OP_CONST ... OP_TRUE_:
        return compute(s, regs->numbers);
    case OP_TYPE_IS ... OP_NO_OVERLAP:
        return check(s, r);
    case OP_PREDICATE:
        own_extracted(p, regs);
        return predicate_holds(s->object, regs);
    default:
        return check_ambient(s);
    }
}

/* The first step from `first` to before `end` that failed, or NULL. */
static Step *
run_steps(Program *p, int first, int end, PyObject *const *slots, Registers *regs)
{
    for (Step *s = p->steps + first, *last = p->steps + end; s < last; s++) {
        if (!run_step(p, s, slots, regs)) {
            return s;
        }
    }
    return NULL;
}

/* As run_steps, of some steps only. */
static Step *
run_listed(Program *p, const int32_t *steps, int n, PyObject *const *slots, Registers *regs)
{
    for (int i = 0; i < n; i++) {
        Step *s = &p->steps[steps[i]];
        if (!run_step(p, s, slots, regs)) {
            return s;
        }
    }
    return NULL;
}

#include "_snapshot.h"

/* The first step that fails of all, or NULL.  `stale`: what made the snapshot useless.  A snapshot
   is taken before the predicates, which are the first that may run code behind the loads. */
static Step *
run_program(Program *p, Action *stale, PyObject *const *slots, Registers *regs)
{
    Snapshot *before = p->snapshot;
    Step *failed = run_steps(p, 0, p->n_plain, slots, regs);
    /* The run behind a compile says little about the calls to come. */
    if (failed == NULL && p->builds < MOST_BUILDS && ++p->runs > 1 && p->snapshot == before) {
        snapshot_renew(p, stale, regs->objects);
    }
    return failed != NULL ? failed : run_steps(p, p->n_plain, p->n_steps, slots, regs);
}

/* As run_program, with the snapshot where it still stands. */
static Step *
first_failure(Program *p, PyObject *const *slots, Registers *regs)
{
    Snapshot *snapshot = p->snapshot;
    if (snapshot == NULL) {
        return run_program(p, NULL, slots, regs);
    }
    snapshot->references++; /* ambient readers and getters may run code that replaces it */
    Step *failed = run_listed(p, snapshot->ambient, snapshot->n_ambient, slots, regs);
    if (failed == NULL) {
        Action *stale = snapshot_compare(p, snapshot, slots, regs);
        if (stale == NULL) {
            failed = run_listed(p, snapshot->dynamic, snapshot->n_dynamic, slots, regs);
            snapshot->hits += failed == NULL;
        } else {
            failed = run_program(p, stale, slots, regs);
        }
    }
    snapshot_release(snapshot);
    return failed;
}

/* Fill `out` with n_extract new references.  Returns -1, or the guard that failed; -2 on error. */
static int
program_run(Program *p, PyObject *const *slots, PyObject **out)
{
    size_t bytes = sizeof(PyObject *) * (p->n_objects + p->n_owned + p->n_numbers);
    void *heap = bytes > 32768 ? PyMem_Malloc(bytes) : NULL;
    if (bytes > 32768 && heap == NULL) {
        PyErr_NoMemory();
        return -2;
    }
    PyObject **memory = heap != NULL ? heap : alloca(bytes + sizeof(PyObject *));
    Registers regs = {memory, (int64_t *)(memory + p->n_objects + p->n_owned),
                      memory + p->n_objects, 0};
    Step *failed = first_failure(p, slots, &regs);
    int result = failed == NULL ? -1 : failed->guard;
    for (int i = 0; failed == NULL && i < p->n_extract; i++) {
        int32_t from = p->extract[i];
        out[i] = from >= 0 ? Py_NewRef(regs.objects[from])
                           : PyLong_FromLongLong(regs.numbers[~from]);
        if (out[i] == NULL) {
            while (i-- > 0) {
                Py_DECREF(out[i]);
            }
            result = -2;
            break;
        }
    }
    if (failed != NULL && PyErr_Occurred()) {
        PyErr_Clear();
    }
    while (regs.n_owned > 0) {
        Py_DECREF(regs.owned[--regs.n_owned]);
    }
    PyMem_Free(heap);
    return result;
}

/* ---- the Python type */

static TensorSpec *
parse_spec(PyObject *t)
{
    PyObject *type, *sizes, *strides;
    unsigned long long keys, kind;
    int requires_grad, is_leaf;
    if (!PyArg_ParseTuple(t, "O!KKpiO!O!", &PyType_Type, &type, &keys, &kind, &requires_grad,
                          &is_leaf, &PyTuple_Type, &sizes, &PyTuple_Type, &strides)) {
        return NULL;
    }
    Py_ssize_t rank = PyTuple_GET_SIZE(sizes);
    if (rank > MAX_RANK || PyTuple_GET_SIZE(strides) != rank) {
        PyErr_SetString(PyExc_ValueError, "sizes and strides must have the same, small length");
        return NULL;
    }
    TensorSpec *spec = PyMem_Calloc(1, sizeof *spec + 2 * rank * sizeof(int64_t));
    if (spec == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *spec = (TensorSpec){(PyTypeObject *)type, keys, kind, rank, requires_grad, is_leaf};
    for (Py_ssize_t i = 0; i < 2 * rank; i++) {
        PyObject *x = i < rank ? PyTuple_GET_ITEM(sizes, i) : PyTuple_GET_ITEM(strides, i - rank);
        spec->dims[i] = x == Py_None ? -1 : PyLong_AsLongLong(x);
    }
    if (PyErr_Occurred()) {
        PyMem_Free(spec);
        return NULL;
    }
    return spec;
}

static int
parse_predicate(Program *p, PyObject *object)
{
    for (Py_ssize_t i = 1; PyTuple_Check(object) && i < PyTuple_GET_SIZE(object); i++) {
        long from = PyLong_AsLong(PyTuple_GET_ITEM(object, i));
        if (PyErr_Occurred() || from >= p->n_objects || ~from >= p->n_numbers) {
            PyErr_SetString(PyExc_ValueError, "malformed PREDICATE");
            return -1;
        }
    }
    p->n_owned += (int)p->n_extract;
    return 0;
}

static int
parse_step(Program *p, Step *s, PyObject *t)
{
    int op, dst, a, b, guard;
    long long number;
    PyObject *object;
    if (!PyTuple_Check(t) || !PyArg_ParseTuple(t, "iiiiLOi", &op, &dst, &a, &b, &number, &object,
                                               &guard)) {
        return -1;
    }
    int limit = op >= OP_SIZE && op <= OP_TRUE_ ? p->n_numbers : p->n_objects;
    int operands = op >= OP_CONST && op <= OP_TRUE_ ? p->n_numbers : p->n_objects;
    int is_check = op >= OP_TYPE_IS;
    if (op < 0 || op > OP_PREDICATE || dst < 0 || a < 0 || b < 0 || dst > 65535 ||
        (!is_check && op != OP_TRUE_ && dst >= limit) || (a && a >= operands) ||
        (b && b >= operands) || (op == OP_SLOT && (number < 0 || number >= p->n_slots)) ||
        ((op == OP_FIELD || op == OP_NULL_FIELD) && (number < 0 || number > F_CELL))) {
        PyErr_Format(PyExc_ValueError, "malformed step %R", t);
        return -1;
    }
    *s = (Step){op, dst, a, b, guard, 0, number, Py_NewRef(object)};
    switch (op) {
    case OP_KEY:
    case OP_MISSING:
        s->number = PyObject_Hash(object);
        return s->number == -1 && PyErr_Occurred() ? -1 : 0;
    case OP_TENSOR:
        s->spec = parse_spec(object);
        return s->spec == NULL ? -1 : 0;
    case OP_GETTER:
        p->n_owned++;
        return 0;
    case OP_KEYS:
        if (!PyTuple_Check(object)) {
            PyErr_SetString(PyExc_TypeError, "KEYS needs a tuple");
            return -1;
        }
        return 0;
    case OP_PREDICATE:
        return parse_predicate(p, object);
    case OP_AMBIENT:
        if (!PyTuple_Check(object) || PyTuple_GET_SIZE(object) != 2) {
            PyErr_SetString(PyExc_TypeError, "AMBIENT needs (reader, value)");
            return -1;
        }
        return 0;
    case OP_LOCAL_KEYS: {
        unsigned long long included, excluded;
        if (!PyArg_ParseTuple(object, "KK", &included, &excluded)) {
            return -1;
        }
        s->version = included, s->number = (int64_t)excluded;
        return 0;
    }
    }
    return 0;
}

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *steps, *extract;
    int n_slots, n_objects, n_numbers;
    if (!PyArg_ParseTuple(args, "O!iiiO!", &PyTuple_Type, &steps, &n_slots, &n_objects, &n_numbers,
                          &PyTuple_Type, &extract)) {
        return NULL;
    }
    if (n_objects > 65535 || n_numbers > 65535) {
        PyErr_SetString(PyExc_ValueError, "too many registers");
        return NULL;
    }
    Program *p = (Program *)type->tp_alloc(type, 0);
    if (p == NULL) {
        return NULL;
    }
    /* Register 0 exists in both files, so that unused operands are always in range. */
    p->n_objects = n_objects < 1 ? 1 : n_objects;
    p->n_numbers = n_numbers < 1 ? 1 : n_numbers;
    p->n_slots = n_slots;
    Py_ssize_t n = PyTuple_GET_SIZE(steps), n_extract = PyTuple_GET_SIZE(extract);
    p->steps = PyMem_Calloc(n + 1, sizeof(Step));
    p->extract = PyMem_Calloc(n_extract + 1, sizeof(int32_t));
    if (p->steps == NULL || p->extract == NULL) {
        Py_DECREF(p);
        return PyErr_NoMemory();
    }
    for (; p->n_extract < n_extract; p->n_extract++) {
        long from = PyLong_AsLong(PyTuple_GET_ITEM(extract, p->n_extract));
        if (PyErr_Occurred() || from >= p->n_objects || ~from >= p->n_numbers) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "extracted register out of range");
            }
            Py_DECREF(p);
            return NULL;
        }
        p->extract[p->n_extract] = (int32_t)from;
    }
    for (; p->n_steps < n; p->n_steps++) {
        if (parse_step(p, &p->steps[p->n_steps], PyTuple_GET_ITEM(steps, p->n_steps)) < 0) {
            p->n_steps++;
            Py_DECREF(p);
            return NULL;
        }
    }
    while (p->n_plain < n && p->steps[p->n_plain].op != OP_PREDICATE) {
        p->n_plain++;
    }
    return (PyObject *)p;
}

static int
program_traverse(Program *p, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(p));
    for (int i = 0; i < p->n_steps; i++) {
        Py_VISIT(p->steps[i].object);
    }
    return 0;
}

static int
program_clear(Program *p)
{
    int n = p->n_steps;
    p->n_steps = 0;
    snapshot_release(p->snapshot);
    p->snapshot = NULL;
    for (int i = 0; i < n; i++) {
        Py_CLEAR(p->steps[i].object);
        PyMem_Free(p->steps[i].spec);
        p->steps[i].spec = NULL;
    }
    p->n_extract = 0;
    return 0;
}

static void
program_dealloc(Program *p)
{
    PyTypeObject *type = Py_TYPE(p);
    PyObject_GC_UnTrack(p);
    program_clear(p);
    PyMem_Free(p->steps);
    PyMem_Free(p->extract);
    type->tp_free(p);
    Py_DECREF(type);
}

static PyObject *
program_call(Program *p, PyObject *slots)
{
    if (!PyTuple_Check(slots) || PyTuple_GET_SIZE(slots) < p->n_slots) {
        return PyErr_Format(PyExc_TypeError, "expected a tuple of %d slots", p->n_slots);
    }
    PyObject *extracted = PyTuple_New(p->n_extract);
    if (extracted == NULL) {
        return NULL;
    }
    int failed = program_run(p, &PyTuple_GET_ITEM(slots, 0), &PyTuple_GET_ITEM(extracted, 0));
    if (failed == -1) {
        return extracted;
    }
    Py_DECREF(extracted);
    return failed == -2 ? NULL : PyLong_FromLong(failed);
}

static PyObject *
program_snapshot(Program *p, PyObject *unused)
{
    Snapshot *snapshot = p->snapshot;
    if (snapshot == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("{sisisnsi}", "compared", snapshot->n_actions, "evaluated",
                         snapshot->n_ambient + snapshot->n_dynamic, "hits", snapshot->hits,
                         "demotions", p->builds);
}

static PyMethodDef program_methods[] = {
    {"run", (PyCFunction)program_call, METH_O,
     "run(slots) -> tuple of extracted objects, or the index of the guard that failed"},
    {"snapshot", (PyCFunction)program_snapshot, METH_NOARGS,
     "snapshot() -> how many words are compared and steps evaluated in a call, or None"},
    {NULL},
};
static PyMemberDef program_members[] = {
    {"steps", T_INT, offsetof(Program, n_steps), READONLY},
    {NULL},
};
static PyType_Slot program_slots[] = {
    {Py_tp_new, program_new},           {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},       {Py_tp_dealloc, program_dealloc},
    {Py_tp_methods, program_methods},   {Py_tp_members, program_members},
    {Py_tp_doc, "Program(steps, n_slots, n_objects, n_numbers, extract)"},
    {0},
};
static PyType_Spec program_spec = {
    "jitshape.frontend._evalframe.Program", sizeof(Program), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, program_slots};

#endif
