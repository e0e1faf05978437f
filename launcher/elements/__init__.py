"""Libvirt's elements, one module a family, named as libvirt names them: values in, lxml elements out, no decisions.

https://libvirt.org/formatdomain.html
"""
