/* Objects: reads dicts, classes, functions, members and containers without running code.

In: an object and a step, which remembers what it found under which version of a dict or class.
Out: borrowed references, or NULL; and comparisons of immutable values. */
#ifndef JITSHAPE_OBJECTS_H
#define JITSHAPE_OBJECTS_H

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
    if (dict == NULL) { /* its class has none: a miss, not an error */
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(dict);
    return dict;
}

static PyObject **
class_field(PyObject *object, int field)
{
    PyTypeObject *type = (PyTypeObject *)object;
    PyHeapTypeObject *heap = (PyHeapTypeObject *)object;
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        return NULL;
    }
    switch (field) {
    case F_NAME: return &heap->ht_name;
    case F_QUALNAME: return &heap->ht_qualname;
    case F_MRO: return &type->tp_mro;
    case F_BASES: return &type->tp_bases;
    default: return NULL;
    }
}

/* Where the object has the field, or NULL. */
static PyObject **
field_address(PyObject *object, int field)
{
    if (field == F_CELL) {
        return PyCell_Check(object) ? &((PyCellObject *)object)->ob_ref : NULL;
    }
    if (field == F_SELF) {
        return PyMethod_Check(object)      ? &((PyMethodObject *)object)->im_self
               : PyCFunction_Check(object) ? &((PyCFunctionObject *)object)->m_self
                                           : NULL;
    }
    if (PyType_Check(object)) {
        return class_field(object, field);
    }
    if (!PyFunction_Check(object) || field > F_MODULE) {
        return NULL;
    }
    PyFunctionObject *f = (PyFunctionObject *)object;
    PyObject **const addresses[] = {&f->func_code,     &f->func_defaults, &f->func_kwdefaults,
                                    &f->func_closure,  &f->func_globals,  &f->func_name,
                                    &f->func_qualname, &f->func_doc,      &f->func_module};
    return addresses[field];
}

static PyObject *
read_field(PyObject *object, int field)
{
    PyObject **address = field_address(object, field);
    if (address != NULL && *address == NULL && field == F_MODULE) {
        return Py_None; /* what Python reads where there is none */
    }
    return address == NULL ? NULL : *address;
}

/* Whether two functions of C are the same method, of whatever object. */
static int
same_method(PyObject *a, PyObject *b)
{
    return PyCFunction_Check(a) && PyCFunction_Check(b) &&
           ((PyCFunctionObject *)a)->m_ml == ((PyCFunctionObject *)b)->m_ml;
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

static int
same_objects(PyObject *a, PyObject *b)
{
    Py_ssize_t n = PyTuple_GET_SIZE(a);
    int same = n == PyTuple_GET_SIZE(b);
    while (same && n-- > 0) {
        same = PyTuple_GET_ITEM(a, n) == PyTuple_GET_ITEM(b, n);
    }
    return same;
}

/* Exact type and value of immutable builtins, sets of them, tuples of the same objects; floats by
bits.  Runs no user code. */
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
    if (PyTuple_CheckExact(a)) {
        return same_objects(a, b);
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

#endif
