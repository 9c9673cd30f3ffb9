/* Program: the guards of one entry as straight-line register code, and what they extract.

In: the slots of a call.  Out: the index of the first guard that fails, or the extracted objects.
Python writes the code (guard_program.py) and runs a program alone only to explain a miss; calls
are judged by tables of programs (_table.h). */
#ifndef JITSHAPE_PROGRAM_H
#define JITSHAPE_PROGRAM_H

typedef struct {
    PyObject_HEAD
    int n_steps, n_objects, n_numbers, n_extract, n_owned, n_slots;
    int n_plain; /* steps before the first predicate */
    Step *steps;
    int32_t *extract; /* object register, or ~number register to box */
} Program;

static PyTypeObject *program_type;

/* Hold what will be extracted: predicates may run code behind the loads. */
static void
own_extracted(const int32_t *extract, int n, Registers *regs)
{
    for (int i = 0; i < n; i++) {
        if (extract[i] >= 0) {
            regs->owned[regs->n_owned++] = Py_NewRef(regs->objects[extract[i]]);
        }
    }
}

/* Fill `out` with new references.  -1 with an error, or 0. */
static int
extract_objects(const int32_t *extract, int n, const Registers *regs, PyObject **out)
{
    for (int i = 0; i < n; i++) {
        out[i] = extract[i] >= 0 ? Py_NewRef(regs->objects[extract[i]])
                                 : PyLong_FromLongLong(regs->numbers[~extract[i]]);
        if (out[i] == NULL) {
            while (i-- > 0) {
                Py_DECREF(out[i]);
            }
            return -1;
        }
    }
    return 0;
}

/* The first step that fails, or NULL. */
static Step *
first_failure(Program *p, PyObject *const *slots, Registers *regs)
{
    for (int i = 0; i < p->n_steps; i++) {
        if (i == p->n_plain) {
            own_extracted(p->extract, p->n_extract, regs);
        }
        if (!run_step(&p->steps[i], slots, regs)) {
            return &p->steps[i];
        }
    }
    return NULL;
}

/* Fill `out` with n_extract new references.  Returns -1, or the guard that failed; -2 on error. */
static int
program_run(Program *p, PyObject *const *slots, PyObject **out)
{
    int n_owned = p->n_owned + p->n_extract;
    PyObject **memory = PyMem_Malloc(sizeof(PyObject *) * (p->n_objects + n_owned + p->n_numbers));
    if (memory == NULL) {
        PyErr_NoMemory();
        return -2;
    }
    Registers regs;
    registers_start(&regs, memory, p->n_objects, n_owned);
    Step *failed = first_failure(p, slots, &regs);
    int result = failed == NULL ? -1 : failed->guard;
    if (failed != NULL) {
        PyErr_Clear();
    } else if (extract_objects(p->extract, p->n_extract, &regs, out) < 0) {
        result = -2;
    }
    registers_end(&regs);
    PyMem_Free(memory);
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
        ((op == OP_FIELD || op == OP_NULL_FIELD) && (number < 0 || number >= N_FIELDS))) {
        PyErr_Format(PyExc_ValueError, "malformed step %R", t);
        return -1;
    }
    *s = (Step){.op = op, .dst = dst, .a = a, .b = b, .guard = guard, .number = number};
    s->object = Py_NewRef(object);
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

static PyMethodDef program_methods[] = {
    {"run", (PyCFunction)program_call, METH_O,
     "run(slots) -> tuple of extracted objects, or the index of the guard that failed"},
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
