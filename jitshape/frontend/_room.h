/* Room: frames beyond the program's recursion limit, for the compiler at work in the middle of it.

`WithRoom(callable)` calls it so; the dispatcher gives room to what serves a miss, the hook to its
route.  None of these calls code of the program's.
Invariant: where the program stood, its limit is as far away afterwards as it was before. */
#ifndef JITSHAPE_ROOM_H
#define JITSHAPE_ROOM_H

#define ROOM 1000

static inline void
give_room(int frames)
{
    PyThreadState *ts = PyThreadState_Get();
#if PY_VERSION_HEX >= 0x030C0000
    ts->py_recursion_remaining += frames;
#else
    ts->recursion_remaining += frames;
#endif
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *callable;
} WithRoom;

static PyTypeObject *with_room_type;

static PyObject *
with_room_vectorcall(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    give_room(ROOM);
    PyObject *result = PyObject_Vectorcall(((WithRoom *)self)->callable, args, nargsf, kwnames);
    give_room(-ROOM);
    return result;
}

static PyObject *
with_room_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *callable;
    if (!PyArg_ParseTuple(args, "O", &callable)) {
        return NULL;
    }
    WithRoom *made = (WithRoom *)type->tp_alloc(type, 0);
    if (made != NULL) {
        made->vectorcall = with_room_vectorcall;
        made->callable = Py_NewRef(callable);
    }
    return (PyObject *)made;
}

static int
with_room_traverse(WithRoom *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->callable);
    return 0;
}

static int
with_room_clear(WithRoom *self)
{
    Py_CLEAR(self->callable);
    return 0;
}

static void
with_room_dealloc(WithRoom *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    with_room_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef with_room_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(WithRoom, vectorcall), READONLY},
    {"callable", T_OBJECT, offsetof(WithRoom, callable), READONLY},
    {NULL},
};
static PyType_Slot with_room_slots[] = {
    {Py_tp_new, with_room_new},           {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, with_room_traverse}, {Py_tp_clear, with_room_clear},
    {Py_tp_dealloc, with_room_dealloc},   {Py_tp_members, with_room_members},
    {0},
};
static PyType_Spec with_room_spec = {
    "jitshape.frontend._evalframe.WithRoom", sizeof(WithRoom), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, with_room_slots};

#endif
