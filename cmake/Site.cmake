# Without pip: <build>/site is a package that runs in place, `tools/in-site build/dev pytest`. It holds _core and
# links to the Python sources.
if(NOT SKBUILD)
  set(site "${CMAKE_CURRENT_BINARY_DIR}/site")
  file(GLOB_RECURSE python_sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}/python"
       python/mpsgrad/*.py python/mpsgrad/*.pyi python/mpsgrad/py.typed)
  foreach(file IN LISTS python_sources)
    get_filename_component(folder "${site}/${file}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}/python/${file}" "${site}/${file}" SYMBOLIC)
  endforeach()
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}/benchmarks" "${site}/mpsgrad/benchmarks" SYMBOLIC)
  file(CREATE_LINK "${CMAKE_CURRENT_LIST_DIR}/sitecustomize.py" "${site}/sitecustomize.py" SYMBOLIC)
  set_target_properties(_core PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${site}/mpsgrad")
endif()
