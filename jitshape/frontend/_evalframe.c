/* The C part of the frontend: dispatchers with their guard programs, and the frame hook. */
#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>
#include <alloca.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

#include "_room.h"

#include "_frames.h"

#include "_tensor.h"

#include "_steps.h"

#include "_program.h"

#include "_table.h"

#include "_tailcall.h"

#include "_entries.h"

#include "_binding.h"

#include "_dispatcher.h"

static PyMethodDef methods[] = {
    {"set_tensor_layout", set_tensor_layout, METH_VARARGS,
     "set_tensor_layout(tensor_type, fields, direct, offsets)"},
    {"set_view_class", set_view_class, METH_VARARGS,
     "set_view_class(class, answer): addresses of a view's autograd record's class and method"},
    {"set_thread_state", set_thread_state, METH_VARARGS,
     "set_thread_state(library, autograd_symbol, keys_symbol, autograd_byte) -> found"},
    {"thread_state", thread_state, METH_NOARGS,
     "(autograd byte, included keys, excluded keys) of this thread, or None"},
    {"set_mode_readers", set_mode_readers, METH_VARARGS,
     "set_mode_readers(autocast_enabled, autocast_dtype, default_dtype): addresses, or 0"},
    {"set_stack_readers", set_stack_readers, METH_VARARGS,
     "set_stack_readers(function_modes, saved_tensor_hooks): addresses, or 0"},
    {"stacks", stacks, METH_NOARGS, "function modes and hooks on saved tensors, as one number"},
    {"mode_words", mode_words, METH_NOARGS, "(autocast, default dtype) as guards compare them"},
    {"tensor_view", tensor_view, METH_O,
     "(keys, kind, offset, requires_grad, is_leaf, storage, sizes, strides) as guards see them"},
    {"apart", (PyCFunction)(void (*)(void))apart, METH_FASTCALL,
     "apart(written, itemsizes, groups, *tensors): the written share no memory with the others"},
    {"push_route", push_route, METH_O, "push_route(route): route this thread's frames"},
    {"pop_route", pop_route, METH_NOARGS, "Undo one push_route."},
    {"forget_other_threads", forget_other_threads, METH_NOARGS,
     "The hook for this thread's routes only, as after a fork."},
    {"hook_state", hook_state, METH_NOARGS, "Whether the hook is in, and counts of frames."},
    {"set_foreign_notice", set_foreign_notice, METH_O,
     "set_foreign_notice(callable): called once, where another tool evaluates frames."},
    {"call_finished", (PyCFunction)(void (*)(void))call_finished, METH_FASTCALL,
     "call_finished(callable, *args): a call and the TailCalls that it ends in"},
    {"push_bypass", push_bypass, METH_NOARGS, "From now on this thread calls originals."},
    {"pop_bypass", pop_bypass, METH_NOARGS, "Undo one push_bypass."},
    {NULL},
};

static int
add_ops(PyObject *module)
{
    static const char *const names[] = {
#define X(name) #name,
        OPS(X)
#undef X
    };
    PyObject *ops = PyDict_New(), *fields = PyDict_New();
    for (size_t i = 0; i < Py_ARRAY_LENGTH(names); i++) {
        PyObject *number = PyLong_FromSize_t(i);
        if (ops == NULL || number == NULL || PyDict_SetItemString(ops, names[i], number) < 0) {
            return -1;
        }
        Py_DECREF(number);
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(FIELD_NAMES); i++) {
        PyObject *number = PyLong_FromSize_t(i);
        if (fields == NULL || PyDict_SetItemString(fields, FIELD_NAMES[i], number) < 0) {
            return -1;
        }
        Py_DECREF(number);
    }
    return PyModule_AddObject(module, "OPS", ops) < 0 ||
                   PyModule_AddObject(module, "FIELDS", fields) < 0
               ? -1
               : 0;
}

static int
make_types(void)
{
    trust_versions_of_split_dicts = (Py_Version >> 8) != 0x030D00; /* before 3.13.1 */
    program_type = (PyTypeObject *)PyType_FromSpec(&program_spec);
    table_type = (PyTypeObject *)PyType_FromSpec(&table_spec);
    entry_type = (PyTypeObject *)PyType_FromSpec(&entry_spec);
    dispatcher_type = (PyTypeObject *)PyType_FromSpec(&dispatcher_spec);
    tailcall_type = (PyTypeObject *)PyType_FromSpec(&tailcall_spec);
    with_room_type = (PyTypeObject *)PyType_FromSpec(&with_room_spec);
    return program_type == NULL || table_type == NULL || entry_type == NULL ||
                   dispatcher_type == NULL || tailcall_type == NULL || with_room_type == NULL
               ? -1
               : make_return_argument();
}

static int
execute_module(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "jitshape works in the main interpreter only: call the function itself in "
                        "others, or compile it in a process of its own");
        return -1;
    }
    if (tailcall_type == NULL && make_types() < 0) {
        return -1;
    }
    if (run_frame == NULL && (run_frame = PyObject_CallNoArgs((PyObject *)&PyBaseObject_Type)) == NULL) {
        return -1;
    }
    return add_ops(module) < 0 || PyModule_AddObjectRef(module, "RUN_FRAME", run_frame) < 0 ||
                   PyModule_AddObjectRef(module, "TailCall", (PyObject *)tailcall_type) < 0 ||
                   PyModule_AddObjectRef(module, "WithRoom", (PyObject *)with_room_type) < 0 ||
                   PyModule_AddObjectRef(module, "Program", (PyObject *)program_type) < 0 ||
                   PyModule_AddObjectRef(module, "Table", (PyObject *)table_type) < 0 ||
                   PyModule_AddObjectRef(module, "Entry", (PyObject *)entry_type) < 0 ||
                   PyModule_AddObjectRef(module, "Dispatcher", (PyObject *)dispatcher_type) < 0
               ? -1
               : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute_module}, {0}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_evalframe", NULL, 0, methods, module_slots};

PyMODINIT_FUNC
PyInit__evalframe(void)
{
    return PyModuleDef_Init(&definition);
}
