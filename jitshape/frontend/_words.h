/* Words: the memory that stands for what a step of a table read.

In: a step and the registers that it read.  Out: actions, appended to a snapshot, which hold as
long as the step's outcome does; 0 where none tell.
Invariants: the words lie in the order of the loads, so that each lies in an object that the words
before it prove alive.  Where only a pointer was compared, the object may have died and another
have come to its place: its class, too, is compared before anything in it is, and an immutable
value, whose content no word tells, is held.  An object is certain to be the same if the program
holds it or a dict or class of the same version does. */
#ifndef JITSHAPE_WORDS_H
#define JITSHAPE_WORDS_H

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
    return layout_word(b, s->a) && word(b, field_address(b->objects[s->a], (int)s->number));
}

static int
method_words(Builder *b, Step *s)
{
    PyObject *method = b->objects[s->a];
    return class_word(b, s->a) &&
           (!PyCFunction_Check(method) || word(b, &((PyCFunctionObject *)method)->m_ml));
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
        !PyBytes_CheckExact(value) && !PyComplex_CheckExact(value) &&
        !PyTuple_CheckExact(value)) {
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
    case OP_METHOD: return method_words(b, s);
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
        return field_address(object, (int)s->number) != NULL ? field_words(b, s)
                                                             : class_word(b, s->a);
    case OP_MEMBER:
    case OP_NULL_MEMBER:
        return member_address(s, object) != NULL
                   ? member_words(b, s)
                   : class_word(b, s->a) && type_tag(b, Py_TYPE(object));
    case OP_TYPE_IS: return class_word(b, s->a);
    case OP_METHOD: return method_words(b, s);
    case OP_EQUALS:
        return Py_TYPE(object) != Py_TYPE(s->object) ? class_word(b, s->a) : pin(b, s, object);
    case OP_IS:
    case OP_SAME:
    case OP_DISTINCT: return 1;
    default: return 0;
    }
}

#endif
