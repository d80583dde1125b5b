# Finds oneDNN (for x86-64 Linux it is a build requirement, installed beside pybind11), links _core to it and puts the
# library next to _core, so that the built package needs nothing at run time.
set(mpsgrad_onednn off)
if(NOT MPSGRAD_ONEDNN STREQUAL "off")
  execute_process(COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_onednn.py"
                  OUTPUT_VARIABLE onednn_prefix OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
  # Not cached: the next isolated build has another prefix.
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp HINTS ${onednn_prefix}/include NO_CACHE)
  find_library(ONEDNN_LIBRARY NAMES libdnnl.so.3 dnnl HINTS ${onednn_prefix}/lib ${onednn_prefix}/lib64 NO_CACHE)
  if(ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY)
    set(mpsgrad_onednn "${ONEDNN_LIBRARY}")
  elseif(MPSGRAD_ONEDNN STREQUAL "on")
    message(FATAL_ERROR "MPSGRAD_ONEDNN=on, but there is no oneDNN: install onednn-devel-cpu-gomp")
  endif()
endif()

if(mpsgrad_onednn)
  # Linked and shipped: a stripped copy, 10 MB smaller than the original.
  get_filename_component(onednn_file "${ONEDNN_LIBRARY}" REALPATH)
  set(onednn_copy "${CMAKE_CURRENT_BINARY_DIR}/onednn/libdnnl.so.3")
  add_custom_command(OUTPUT "${onednn_copy}" DEPENDS "${onednn_file}" VERBATIM
                     COMMAND "${CMAKE_STRIP}" --strip-unneeded -o "${onednn_copy}" "${onednn_file}"
                     COMMENT "Stripping ${onednn_file}")
  file(MAKE_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/onednn")
  add_custom_target(onednn_copy DEPENDS "${onednn_copy}")
  add_dependencies(_core onednn_copy)
  add_library(onednn SHARED IMPORTED)
  set_target_properties(onednn PROPERTIES IMPORTED_LOCATION "${onednn_copy}")
  target_sources(_core PRIVATE ${onednn_sources})
  target_include_directories(_core SYSTEM PRIVATE "${ONEDNN_INCLUDE_DIR}")
  target_link_libraries(_core PRIVATE onednn)
  target_compile_definitions(_core PRIVATE MPSGRAD_HAVE_ONEDNN=1)
  install(FILES "${onednn_copy}" DESTINATION mpsgrad)
  if(EXISTS "${onednn_prefix}/share/doc/onednn/LICENSE")
    install(DIRECTORY "${onednn_prefix}/share/doc/onednn/" DESTINATION mpsgrad/licenses/onednn)
  endif()
endif()
